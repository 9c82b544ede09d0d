//! Save images of tool results as session files and name them in the result. Later models, also after a restart, load
//! them like images of users (`image_cache`).

use std::path::Path;
use std::sync::atomic::AtomicBool;

use quell_kernel::image::{Image, ImageUnavailable};
use quell_kernel::turn::CallResult;
use quell_protocol::SessionKey;
use quell_scope::{Cancelled, Point};
use quell_tools::ToolOutput;
use quell_tools::attachment::{attachment_folder, write_attachment};
use sha2::{Digest, Sha256};

use super::AgentLoop;

/// The most images of one result that are saved.
const MAX_IMAGES_PER_RESULT: usize = 8;

/// The most images of results that a session keeps: with 5 MiB each, 1 GiB of its workdir.
const MAX_IMAGES_PER_SESSION: usize = 200;

impl AgentLoop<'_> {
    /// The result of a call, with its images saved. It stands even if that fails; it then says what is missing.
    pub(super) async fn save_result_images(&self, output: ToolOutput) -> CallResult {
        let ToolOutput { end, code, text, images, diff } = output;
        let mut result = CallResult { code, diff: diff.map(String::into_boxed_str), ..CallResult::new(end, text) };
        if images.is_empty() {
            return result;
        }
        let label = format!("pictures of a result ({})", images.len());
        let (workdir, session) = (self.agent.workdir.clone(), self.writer.run().session.clone());
        let save = move |stop: &AtomicBool| save_images(&images, &workdir, &session, stop);
        match self.scope.blocking(Point::KeepPictures, &label, save).await {
            Ok(saved) => record_saved_images(&mut result, saved),
            // The call is over, so its result stays as it is.
            Err(Cancelled) => result.output.push_str("\n[its pictures were not kept: the request was stopped]"),
        }
        result
    }
}

/// The file of each image, or why it was not saved.
type SavedImages = Vec<Result<String, String>>;

fn save_images(images: &[String], workdir: &Path, session: &SessionKey, stop: &AtomicBool) -> SavedImages {
    let folder = format!("{}/tools", attachment_folder(session));
    let existing_count = std::fs::read_dir(workdir.join(&folder)).map_or(0, Iterator::count);
    let save_one = |(nth, data): (usize, &String)| {
        if nth >= MAX_IMAGES_PER_RESULT {
            return Err(format!("a result shows at most {MAX_IMAGES_PER_RESULT}"));
        }
        if existing_count + nth >= MAX_IMAGES_PER_SESSION {
            return Err(format!("this session has kept {MAX_IMAGES_PER_SESSION} already"));
        }
        let (image, bytes) = Image::from_base64(data).map_err(describe_unavailable)?;
        // The same image gets the same file.
        let hash: String = Sha256::digest(&bytes).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let kind = image.media_type().trim_start_matches("image/");
        let path = format!("{folder}/{hash}.{kind}");
        let file = write_attachment(workdir, &path, &bytes, stop)?;
        file.into_os_string().into_string().map_err(|_| "the workdir's name is not UTF-8".to_owned())
    };
    images.iter().enumerate().map(save_one).collect()
}

fn describe_unavailable(unseen: ImageUnavailable) -> String {
    match unseen {
        ImageUnavailable::TooLarge => "it is larger than 5 MiB".to_owned(),
        ImageUnavailable::UnsupportedFormat => "it is neither PNG, JPEG, GIF nor WebP".to_owned(),
        ImageUnavailable::Unreadable | ImageUnavailable::OutsideImageFolders | ImageUnavailable::OverRequestLimit => {
            "it cannot be read".to_owned()
        }
    }
}

fn record_saved_images(result: &mut CallResult, saved: SavedImages) {
    for (nth, outcome) in saved.into_iter().enumerate() {
        match outcome {
            Ok(file) => result.pictures.push(file),
            Err(problem) => {
                tracing::info!(problem, "an image of a result was not saved");
                result.output.push_str(&format!("\n[image {} is not shown: {problem}]", nth + 1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_protocol::CallEnd;

    use super::*;

    const PNG: &str = "iVBORw0KGgo=";

    #[test]
    fn unusable_oversized_and_surplus_images_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let ann = SessionKey::parse("ann").unwrap();
        let large = "iVBORw0KGgoA".repeat(700_000);
        let mut pictures =
            vec![PNG, "aGVsbG8=", "no base64", &large].into_iter().map(str::to_owned).collect::<Vec<_>>();
        pictures.extend((0..MAX_IMAGES_PER_RESULT).map(|_| PNG.to_owned()));
        let kept = save_images(&pictures, dir.path(), &ann, &AtomicBool::new(false));
        let mut result = CallResult::new(CallEnd::Ok, "look");
        record_saved_images(&mut result, kept);
        assert_eq!(result.pictures.len(), MAX_IMAGES_PER_RESULT - 3);
        assert!(result.pictures.iter().all(|file| file == &result.pictures[0]), "the same picture is the same file");
        assert_eq!(std::fs::read(&result.pictures[0]).unwrap(), b"\x89PNG\r\n\x1a\n");
        let kind = "it is neither PNG, JPEG, GIF nor WebP";
        let told = format!(
            "look\n[image 2 is not shown: {kind}]\n[image 3 is not shown: {kind}]\n[image 4 is not shown: it is larger than 5 MiB]\n"
        );
        assert!(result.output.starts_with(&told), "{}", result.output);
        assert!(result.output.ends_with("\n[image 12 is not shown: a result shows at most 8]"), "{}", result.output);
    }

    #[test]
    fn a_session_keeps_no_more_pictures_than_its_share() {
        let dir = tempfile::tempdir().unwrap();
        let ann = SessionKey::parse("ann").unwrap();
        let folder = dir.path().join(attachment_folder(&ann)).join("tools");
        std::fs::create_dir_all(&folder).unwrap();
        for nth in 1..MAX_IMAGES_PER_SESSION {
            std::fs::write(folder.join(nth.to_string()), "").unwrap();
        }
        let pictures = [PNG.to_owned(), "R0lGODlhAQABAAAAACw=".to_owned()];
        let kept = save_images(&pictures, dir.path(), &ann, &AtomicBool::new(false));
        assert!(kept[0].is_ok(), "{kept:?}");
        assert_eq!(kept[1], Err("this session has kept 200 already".to_owned()));
    }
}
