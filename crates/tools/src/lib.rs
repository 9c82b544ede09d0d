//! The trait of tools, the built-in tools, and background commands.
//!
//! A failure of a tool is a [`ToolOutput`] that the model can read; `Cancelled` means a stop and nothing else. The
//! text of an output is never longer than [`ToolContext::output_limit`]. This crate does not know runs, sessions or
//! approvals.

mod atomic_write;
pub mod attachment;
pub mod background;
mod confined_fs;
mod definition;
mod edit;
mod fetch;
mod fetch_url;
mod file_diff;
mod file_edit;
mod file_tool;
mod file_undo;
mod glob_pattern;
mod image_file;
mod instructions;
mod list;
mod listed_network;
mod patch;
mod process;
mod protected_paths;
mod read;
mod sandbox_note;
mod search;
mod shell;
mod skills;
mod text;
mod todo;
mod tool;
mod toolbox;
mod tree_deletion;
mod walk;
mod workdir_locks;
mod write;

#[cfg(test)]
mod tests;

pub use confined_fs::real_target;
pub use definition::{AgentFacts, Delegate, ToolArguments, ToolDefinition, parse_arguments, tool_spec};
pub use fetch::FetchSettings;
pub use file_edit::{BackupFuture, ChangedFile, FileBackup, ReplacedFile};
pub use file_undo::{RestoredFile, UndoPlace};
pub use image_file::{AllowedImages, read_image};
pub use instructions::{InstructionsReach, LoadedInstructions, read_instructions};
pub use listed_network::ListedNetwork;
pub use protected_paths::ProtectedPaths;
pub use skills::{LoadedSkills, read_skills};
use tool::BuiltInTool;
pub use tool::{Tool, ToolContext, ToolFuture, ToolOutput, call_tool};
pub use toolbox::{ToolSettings, Toolbox};
pub use tree_deletion::delete_tree;
pub use workdir_locks::{WorkdirGuard, WorkdirLocks};

/// Every built-in tool, in the order in which models see them.
pub static BUILT_IN_TOOLS: [&dyn Tool; 10] = [
    &BuiltInTool::<read::ReadFile>::new(),
    &BuiltInTool::<write::WriteFile>::new(),
    &BuiltInTool::<edit::EditFile>::new(),
    &BuiltInTool::<patch::ApplyPatch>::new(),
    &BuiltInTool::<list::ListFiles>::new(),
    &BuiltInTool::<search::SearchFiles>::new(),
    &BuiltInTool::<shell::ShellArgs>::new(),
    &BuiltInTool::<process::ProcessArgs>::new(),
    &BuiltInTool::<fetch_url::FetchUrlArgs>::new(),
    &BuiltInTool::<todo::TodoArgs>::new(),
];
