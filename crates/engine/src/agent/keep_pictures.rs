//! The pictures that an MCP server answered with: files of the session, named in the result of the call. Whatever model reads the
//! conversation later, and after a restart, finds them there as it finds the pictures of users (`pictures`).

use std::path::Path;
use std::sync::atomic::AtomicBool;

use quell_kernel::picture::{Picture, Unseen};
use quell_kernel::turn::CallResult;
use quell_protocol::SessionKey;
use sha2::{Digest, Sha256};

use super::Job;
use crate::mcp::ToolAnswer;
use crate::scope::{Cancelled, Point};
use crate::tools::attachment::{folder_of, write_attachment};

/// The most pictures of one result that are kept.
const MOST: usize = 8;

/// The most pictures of results that a session keeps: with 5 MiB each, 1 GiB of its workdir.
const MOST_OF_SESSION: usize = 200;

impl Job<'_> {
    /// Keeps the pictures of an answer. Its result stands, whatever becomes of them: what is missing is said in it.
    pub(super) async fn keep_pictures(&self, answer: ToolAnswer) -> CallResult {
        let ToolAnswer { mut result, pictures } = answer;
        if pictures.is_empty() {
            return result;
        }
        let label = format!("pictures of a result ({})", pictures.len());
        let (workdir, session) = (self.agent.workdir.clone(), self.pen.run().session.clone());
        let keeping = move |stop: &AtomicBool| keep(&pictures, (&workdir, &session), stop);
        match self.scope.blocking(Point::KeepPictures, &label, keeping).await {
            Ok(kept) => note(&mut result, kept),
            // The call is over, and its result is the truth about it.
            Err(Cancelled) => result.output.push_str("\n[its pictures were not kept: the request was stopped]"),
        }
        result
    }
}

/// The file of each, or why there is none.
type Kept = Vec<Result<String, String>>;

fn keep(pictures: &[String], (workdir, session): (&Path, &SessionKey), stop: &AtomicBool) -> Kept {
    let folder = format!("{}/tools", folder_of(session));
    let earlier = std::fs::read_dir(workdir.join(&folder)).map_or(0, Iterator::count);
    let keep_one = |(nth, data): (usize, &String)| {
        if nth >= MOST {
            return Err(format!("a result shows at most {MOST}"));
        }
        if earlier + nth >= MOST_OF_SESSION {
            return Err(format!("this session has kept {MOST_OF_SESSION} already"));
        }
        let (picture, bytes) = Picture::of_base64(data).map_err(why)?;
        // The same picture is the same file.
        let hash: String = Sha256::digest(&bytes).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let kind = picture.media_type().trim_start_matches("image/");
        let path = format!("{folder}/{hash}.{kind}");
        let file = write_attachment(workdir, &path, &bytes, stop)?;
        file.into_os_string().into_string().map_err(|_| "the workdir's name is not UTF-8".to_owned())
    };
    pictures.iter().enumerate().map(keep_one).collect()
}

fn why(unseen: Unseen) -> String {
    match unseen {
        Unseen::TooLarge => "it is larger than 5 MiB".to_owned(),
        Unseen::NoPicture => "it is neither PNG, JPEG, GIF nor WebP".to_owned(),
        Unseen::Gone | Unseen::Elsewhere | Unseen::NoRoom => "it cannot be read".to_owned(),
    }
}

fn note(result: &mut CallResult, kept: Kept) {
    for (nth, kept) in kept.into_iter().enumerate() {
        match kept {
            Ok(file) => result.pictures.push(file),
            Err(problem) => {
                tracing::info!(problem, "a picture of a result is not kept");
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
    fn what_is_no_picture_too_large_or_too_much_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let ann = SessionKey::parse("ann").unwrap();
        let large = "iVBORw0KGgoA".repeat(700_000);
        let mut pictures =
            vec![PNG, "aGVsbG8=", "no base64", &large].into_iter().map(str::to_owned).collect::<Vec<_>>();
        pictures.extend((0..MOST).map(|_| PNG.to_owned()));
        let kept = keep(&pictures, (dir.path(), &ann), &AtomicBool::new(false));
        let mut result = CallResult::new(CallEnd::Ok, "look");
        note(&mut result, kept);
        assert_eq!(result.pictures.len(), MOST - 3);
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
        let folder = dir.path().join(folder_of(&ann)).join("tools");
        std::fs::create_dir_all(&folder).unwrap();
        for nth in 1..MOST_OF_SESSION {
            std::fs::write(folder.join(nth.to_string()), "").unwrap();
        }
        let pictures = [PNG.to_owned(), "R0lGODlhAQABAAAAACw=".to_owned()];
        let kept = keep(&pictures, (dir.path(), &ann), &AtomicBool::new(false));
        assert!(kept[0].is_ok(), "{kept:?}");
        assert_eq!(kept[1], Err("this session has kept 200 already".to_owned()));
    }
}
