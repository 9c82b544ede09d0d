//! Load the images that a request shows, each once per run, within a size limit.
//!
//! A loaded image stays the same until the end of the run, even if its file changes, so that the requests of a run
//! begin with the same bytes. The next run loads it again; if the file is unchanged, so are the bytes.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_kernel::approval::ApprovalPolicy;
use quell_kernel::image::{Image, ImageSource, ImageUnavailable};
use quell_kernel::prompt::{self, ImageSet, Prompt, Vision};
use quell_kernel::turn::{Turn, TurnDraft};
use quell_llm::Conversation;
use quell_protocol::SessionKey;
use quell_scope::{Cancelled, Point};
use quell_tools::{self, AllowedImages};

use super::AgentLoop;

/// The most bytes of base64 that the images of one request may have together: Anthropic's Messages API accepts requests
/// of up to 32 MB.
const MAX_IMAGE_BYTES_PER_REQUEST: usize = 24 * 1024 * 1024;

/// The images of a run, loaded or unavailable.
#[derive(Debug, Default)]
pub struct ImageCache(Mutex<ImageSet>);

impl ImageCache {
    fn lock_images(&self) -> MutexGuard<'_, ImageSet> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AgentLoop<'_> {
    /// Loads the images that the next request shows and that are not loaded yet.
    pub(super) async fn load_images(&self) -> Result<(), Cancelled> {
        if !self.agent.config.vision {
            return Ok(());
        }
        let wanted_sources = self.writer.with_draft(|draft| prompt::wanted_image_sources(self.history, Some(draft)))?;
        let (mut missing_sources, used_bytes) = {
            let cached_images = self.image_cache.lock_images();
            let is_missing = |source: &String| {
                !cached_images.contains(source) && !matches!(ImageSource::parse(source), ImageSource::Url(_))
            };
            (wanted_sources.into_iter().filter(is_missing).collect::<Vec<_>>(), cached_images.base64_bytes())
        };
        if missing_sources.is_empty() {
            return Ok(());
        }
        // The newest first, because the message is most likely about them.
        missing_sources.reverse();
        let label = format!("pictures ({})", missing_sources.len());
        let workdir = self.agent.workdir.clone();
        let max_bytes = MAX_IMAGE_BYTES_PER_REQUEST.saturating_sub(used_bytes);
        let session = self.writer.run().session.clone();
        // Attachments of messages may always be read. Other files of the workdir only if `read_file` is allowed without
        // an approval.
        let config = &self.agent.config;
        let may_read_files =
            config.has_tool("read_file") && config.approval_policy("read_file") == ApprovalPolicy::Auto;
        let allowed_paths = if may_read_files { AllowedImages::Workdir } else { AllowedImages::Attachments };
        let load =
            move |stop: &AtomicBool| read_images(missing_sources, &workdir, &session, allowed_paths, max_bytes, stop);
        let loaded_images = self.scope.blocking(Point::Pictures, &label, load).await?;
        let mut cached_images = self.image_cache.lock_images();
        for (source, image) in loaded_images {
            if let Err(unseen) = &image {
                tracing::info!(run = %self.run_id, ?unseen, "an image is not shown to the model");
            }
            cached_images.insert_if_absent(source, image);
        }
        Ok(())
    }

    /// Encodes a conversation for the agent's model, with the loaded images.
    pub(super) fn build_conversation(
        &self,
        system: &str,
        turns: &[Arc<Turn>],
        draft: &TurnDraft,
        run_context: Option<&str>,
    ) -> Conversation {
        let images = self.image_cache.lock_images();
        let vision = if self.agent.config.vision { Vision::Images(&images) } else { Vision::TextOnly };
        let model = self.model().name();
        self.model().encode_conversation(&Prompt {
            model,
            system,
            turns,
            draft: Some(draft),
            run_context,
            time_zone: Some(&self.services.time_zone),
            vision,
        })
    }
}

fn read_images(
    sources: Vec<String>,
    workdir: &Path,
    session: &SessionKey,
    allowed_paths: AllowedImages,
    mut remaining_bytes: usize,
    stop: &AtomicBool,
) -> Vec<(String, Result<Image, ImageUnavailable>)> {
    let mut loaded_images = Vec::with_capacity(sources.len());
    for source in sources {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let image = match ImageSource::parse(&source) {
            ImageSource::File(path) => quell_tools::read_image(workdir, allowed_paths, session, path, stop),
            ImageSource::Data(url) => Image::from_data_url(url),
            ImageSource::Url(_) | ImageSource::Unknown => Err(ImageUnavailable::OutsideImageFolders),
        };
        let image = image.and_then(|image| match remaining_bytes.checked_sub(image.base64().len()) {
            Some(left_bytes) => {
                remaining_bytes = left_bytes;
                Ok(image)
            }
            None => Err(ImageUnavailable::OverRequestLimit),
        });
        loaded_images.push((source, image));
    }
    loaded_images
}

#[cfg(test)]
mod tests {
    use quell_tools::attachment::attachment_folder;

    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

    fn found(workdir: &Path, sources: &[&str], room: usize) -> Vec<Result<&'static str, ImageUnavailable>> {
        let ann = SessionKey::parse("ann").unwrap();
        let sources = sources.iter().map(|source| (*source).to_owned()).collect();
        let found = read_images(sources, workdir, &ann, AllowedImages::Workdir, room, &AtomicBool::new(false));
        found.into_iter().map(|(_, image)| image.map(|image| image.media_type())).collect()
    }

    #[test]
    fn only_pictures_below_the_workdir_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let workdir = dir.path().join("work");
        let own = attachment_folder(&SessionKey::parse("ann").unwrap());
        let foreign = attachment_folder(&SessionKey::parse("bob").unwrap());
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
            (at(&format!("{foreign}/a.png")), Err(ImageUnavailable::OutsideImageFolders)),
            (at("bobs/a.png"), Err(ImageUnavailable::OutsideImageFolders)),
            (at("a.txt"), Err(ImageUnavailable::UnsupportedFormat)),
            (at("none.png"), Err(ImageUnavailable::Unreadable)),
            (at(""), Err(ImageUnavailable::Unreadable)),
            (at("pipe.png"), Err(ImageUnavailable::Unreadable)),
            (at("large.png"), Err(ImageUnavailable::TooLarge)),
            (at("link.png"), Err(ImageUnavailable::OutsideImageFolders)),
            (at("../outside.png"), Err(ImageUnavailable::OutsideImageFolders)),
            (dir.path().join("outside.png").display().to_string(), Err(ImageUnavailable::OutsideImageFolders)),
            ("/etc/hostname".to_owned(), Err(ImageUnavailable::OutsideImageFolders)),
            ("attachments/a.png".to_owned(), Err(ImageUnavailable::OutsideImageFolders)),
            ("http://host/a.png".to_owned(), Err(ImageUnavailable::OutsideImageFolders)),
            ("data:image/png;base64,iVBORw0KGgo=".to_owned(), Ok("image/png")),
        ] {
            assert_eq!(found(&workdir, &[&source], MAX_IMAGE_BYTES_PER_REQUEST), [expected], "{source}");
        }
        // The real path of a linked workdir.
        let (own, foreign) = (at(&format!("{own}/a.png")), at(&format!("{foreign}/a.png")));
        let linked = found(&dir.path().join("linked"), &[&own, &foreign], MAX_IMAGE_BYTES_PER_REQUEST);
        assert_eq!(linked, [Ok("image/png"), Err(ImageUnavailable::OutsideImageFolders)]);
    }

    #[test]
    fn the_first_that_are_asked_for_have_the_room() {
        let data = "data:image/png;base64,iVBORw0KGgo=";
        let dir = tempfile::tempdir().unwrap();
        let expected = [Ok("image/png"), Ok("image/png"), Err(ImageUnavailable::OverRequestLimit)];
        assert_eq!(found(dir.path(), &[data; 3], 24), expected);
    }

    #[test]
    fn a_stop_ends_the_reading() {
        let dir = tempfile::tempdir().unwrap();
        let ann = SessionKey::parse("ann").unwrap();
        assert_eq!(
            read_images(
                vec!["/a".to_owned()],
                dir.path(),
                &ann,
                AllowedImages::Workdir,
                MAX_IMAGE_BYTES_PER_REQUEST,
                &AtomicBool::new(true)
            ),
            []
        );
    }
}
