//! The pictures of a run whose model sees: those that its requests show are read before, each once.
//!
//! Once it was looked for, a picture stays as it was found until the run's end, whatever becomes of its file: so the requests of
//! a run begin alike. The next run reads it again, and as long as the file is the same, so are the bytes.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_kernel::approval::ApprovalPolicy;
use quell_kernel::picture::{Picture, Source, Unseen};
use quell_kernel::turn::{Turn, TurnDraft};
use quell_kernel::view::{self, Pictures, Prompt, Sight};
use quell_protocol::SessionKey;

use super::Job;
use crate::llm::Conversation;
use crate::scope::{Cancelled, Point};
use crate::tools::{self, Within};

/// Bytes of base64 that the pictures of one request may take together: the Messages API of Anthropic takes requests of up to
/// 32 MB.
const ROOM: usize = 24 * 1024 * 1024;

/// What a run has looked for.
#[derive(Debug, Default)]
pub struct Gallery(Mutex<Pictures>);

impl Gallery {
    fn pictures(&self) -> MutexGuard<'_, Pictures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job<'_> {
    /// Reads what the next request shows and was not looked for yet.
    pub(super) async fn look(&self) -> Result<(), Cancelled> {
        if !self.agent.config.vision {
            return Ok(());
        }
        let wanted = self.pen.draft(|draft| view::wanted(self.history, Some(draft)))?;
        let (mut news, used) = {
            let known = self.gallery.pictures();
            let is_news = |source: &String| !known.knows(source) && !matches!(Source::of(source), Source::Url(_));
            (wanted.into_iter().filter(is_news).collect::<Vec<_>>(), known.bytes())
        };
        if news.is_empty() {
            return Ok(());
        }
        // The newest first: they are what the message is about.
        news.reverse();
        let label = format!("pictures ({})", news.len());
        let workdir = self.agent.workdir.clone();
        let room = ROOM.saturating_sub(used);
        let session = self.pen.run().session.clone();
        // What came with a message may be seen; every other file of the workdir is read as with the tool.
        let config = &self.agent.config;
        let reads = config.has_tool("read_file") && config.approval("read_file") == ApprovalPolicy::Auto;
        let sight = if reads { Within::Workdir } else { Within::Attachments };
        let reading = move |stop: &AtomicBool| read(news, (&workdir, &session, sight), room, stop);
        let found = self.scope.blocking(Point::Pictures, &label, reading).await?;
        let mut pictures = self.gallery.pictures();
        for (source, picture) in found {
            if let Err(unseen) = &picture {
                tracing::info!(run = %self.run, ?unseen, "a picture is not shown to the model");
            }
            pictures.note(source, picture);
        }
        Ok(())
    }

    /// A conversation as the agent's model reads it, with the pictures that were found.
    pub(super) fn spell(
        &self,
        system: &str,
        turns: &[Arc<Turn>],
        draft: &TurnDraft,
        preamble: Option<&str>,
    ) -> Conversation {
        let pictures = self.gallery.pictures();
        let sight = if self.agent.config.vision { Sight::Of(&pictures) } else { Sight::Blind };
        let model = self.agent.model.name();
        self.agent.model.conversation(&Prompt { model, system, turns, draft: Some(draft), preamble, sight })
    }
}

fn read(
    sources: Vec<String>,
    (workdir, session, within): (&Path, &SessionKey, Within),
    mut room: usize,
    stop: &AtomicBool,
) -> Vec<(String, Result<Picture, Unseen>)> {
    let mut found = Vec::with_capacity(sources.len());
    for source in sources {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let picture = match Source::of(&source) {
            Source::File(path) => tools::picture((workdir, within), session, path, stop),
            Source::Data(url) => Picture::of_data_url(url),
            Source::Url(_) | Source::Unknown => Err(Unseen::Elsewhere),
        };
        let picture = picture.and_then(|picture| match room.checked_sub(picture.base64().len()) {
            Some(rest) => {
                room = rest;
                Ok(picture)
            }
            None => Err(Unseen::NoRoom),
        });
        found.push((source, picture));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::attachment::folder_of;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

    fn found(workdir: &Path, sources: &[&str], room: usize) -> Vec<Result<&'static str, Unseen>> {
        let ann = SessionKey::parse("ann").unwrap();
        let sources = sources.iter().map(|source| (*source).to_owned()).collect();
        let found = read(sources, (workdir, &ann, Within::Workdir), room, &AtomicBool::new(false));
        found.into_iter().map(|(_, picture)| picture.map(|picture| picture.media_type())).collect()
    }

    #[test]
    fn only_pictures_below_the_workdir_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let workdir = dir.path().join("work");
        let own = folder_of(&SessionKey::parse("ann").unwrap());
        let foreign = folder_of(&SessionKey::parse("bob").unwrap());
        for folder in [&own, &foreign] {
            std::fs::create_dir_all(workdir.join(folder)).unwrap();
            std::fs::write(workdir.join(folder).join("a.png"), PNG).unwrap();
        }
        std::os::unix::fs::symlink(&foreign, workdir.join("bobs")).unwrap();
        std::os::unix::fs::symlink(&workdir, dir.path().join("linked")).unwrap();
        std::fs::write(workdir.join("a.txt"), "a secret").unwrap();
        std::fs::write(dir.path().join("outside.png"), PNG).unwrap();
        std::os::unix::fs::symlink(dir.path().join("outside.png"), workdir.join("link.png")).unwrap();
        let large = std::fs::File::create(workdir.join("large.png")).unwrap();
        large.set_len(1 << 40).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&large, PNG, 0).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, workdir.join("pipe.png"), rustix::fs::Mode::RWXU).unwrap();
        let at = |name: &str| workdir.join(name).display().to_string();
        for (source, expected) in [
            (at(&format!("{own}/a.png")), Ok("image/png")),
            (at(&format!("{foreign}/a.png")), Err(Unseen::Elsewhere)),
            (at("bobs/a.png"), Err(Unseen::Elsewhere)),
            (at("a.txt"), Err(Unseen::NoPicture)),
            (at("none.png"), Err(Unseen::Gone)),
            (at(""), Err(Unseen::Gone)),
            (at("pipe.png"), Err(Unseen::Gone)),
            (at("large.png"), Err(Unseen::TooLarge)),
            (at("link.png"), Err(Unseen::Elsewhere)),
            (at("../outside.png"), Err(Unseen::Elsewhere)),
            (dir.path().join("outside.png").display().to_string(), Err(Unseen::Elsewhere)),
            ("/etc/hostname".to_owned(), Err(Unseen::Elsewhere)),
            ("attachments/a.png".to_owned(), Err(Unseen::Elsewhere)),
            ("http://host/a.png".to_owned(), Err(Unseen::Elsewhere)),
            ("data:image/png;base64,iVBORw0KGgo=".to_owned(), Ok("image/png")),
        ] {
            assert_eq!(found(&workdir, &[&source], ROOM), [expected], "{source}");
        }
        // The real name of a linked workdir.
        let (own, foreign) = (at(&format!("{own}/a.png")), at(&format!("{foreign}/a.png")));
        let linked = found(&dir.path().join("linked"), &[&own, &foreign], ROOM);
        assert_eq!(linked, [Ok("image/png"), Err(Unseen::Elsewhere)]);
    }

    #[test]
    fn the_first_that_are_asked_for_have_the_room() {
        let data = "data:image/png;base64,iVBORw0KGgo=";
        let dir = tempfile::tempdir().unwrap();
        let expected = [Ok("image/png"), Ok("image/png"), Err(Unseen::NoRoom)];
        assert_eq!(found(dir.path(), &[data; 3], 24), expected);
    }

    #[test]
    fn a_stop_ends_the_reading() {
        let dir = tempfile::tempdir().unwrap();
        let ann = SessionKey::parse("ann").unwrap();
        assert_eq!(read(vec!["/a".to_owned()], (dir.path(), &ann, Within::Workdir), ROOM, &AtomicBool::new(true)), []);
    }
}
