//! Inside engine a module may use lower ranks only (ARCHITECTURE.md).

use super::TidyFinding;
use super::source_file::SourceFile;

const RANKS: &[(&str, u8)] = &[
    ("journal", 0),
    ("channel_origin", 0),
    ("live_run", 1),
    ("approvals", 1),
    ("access", 1),
    ("hooks", 1),
    ("memory", 1),
    ("agent", 2),
    ("runs", 3),
    ("session", 4),
    ("engine", 5),
];

const ENGINE_SRC: &str = "crates/engine/src/";

pub(super) fn check_engine_ranks(source: &SourceFile) -> Vec<TidyFinding> {
    let Some(inside) = source.path.strip_prefix(ENGINE_SRC).and_then(|path| path.strip_suffix(".rs")) else {
        return Vec::new();
    };
    let parts: Vec<&str> = inside.split('/').collect();
    let own = parts[0];
    if own == "lib" {
        return Vec::new();
    }
    let Some(rank) = rank_of(own) else {
        return vec![TidyFinding::new(
            1,
            format!("the module `{own}` has no rank: draw it in ARCHITECTURE.md and RANKS"),
        )];
    };
    let paths = source.paths();
    let named = paths.iter().filter_map(|(line, path)| Some((*line, top_module(path, parts.len())?)));
    named.filter_map(|(line, other)| Some(TidyFinding::new(line, rank_violation((own, rank), other)?))).collect()
}

fn rank_of(module: &str) -> Option<u8> {
    RANKS.iter().find(|(name, _)| *name == module).map(|(_, rank)| *rank)
}

/// The module of the crate that a path names, whether from the top or by climbing there.
fn top_module(path: &[String], depth: usize) -> Option<&str> {
    let climbs = path.iter().take_while(|part| *part == "super").count();
    let at = match (path.first()?.as_str(), climbs) {
        ("crate", _) => 1,
        (_, climbs) if climbs > 0 && climbs >= depth => climbs,
        _ => return None,
    };
    path.get(at).map(String::as_str).filter(|name| name.starts_with(char::is_lowercase))
}

fn rank_violation(own: (&str, u8), other: &str) -> Option<String> {
    let (own, rank_of_own) = own;
    if own == other {
        return None;
    }
    match rank_of(other) {
        Some(rank) if rank < rank_of_own => None,
        Some(rank) => Some(format!(
            "`{own}` (rank {rank_of_own}) may not use `{other}` (rank {rank}): arrows point down, hand a value or a trait up"
        )),
        None => Some(format!("the module `{other}` has no rank: draw it in ARCHITECTURE.md and RANKS")),
    }
}
