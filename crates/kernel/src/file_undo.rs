//! Decide what undoing a run's changes does with one file.
//!
//! A change is stored before the file is written, so the last state of a change may be the one before it.

/// One stored change of a file, by hashes of the content; `None` where there is no file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashedChange {
    pub number: i64,
    pub before: Option<String>,
    pub after: Option<String>,
    /// Whether the content before the change is kept.
    pub has_content: bool,
}

/// What is at the path now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CurrentFile {
    Absent,
    Present {
        sha256: String,
    },
    /// It cannot be read, or is no file; with the reason.
    Unreadable(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileUndo {
    /// The content that was kept with the change of this number is written.
    Restore(i64),
    /// The run has created the file.
    Remove,
    /// The file is as it was before the run.
    AsBefore,
    /// The content before the run was too large to be kept.
    NotKept,
    Conflict(UndoConflict),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UndoConflict {
    /// The file is not what the run has written.
    ChangedSince,
    /// Between two writes of the run, something else has changed the file.
    ChangedBetween,
    Unreadable(String),
}

/// Whether changes of others are overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UndoForce {
    OwnChangesOnly,
    OverwriteOthers,
}

/// Decides about one file. `changes` are those of the run and its sub-runs, in order; they are not empty.
pub fn plan_file_undo(changes: &[HashedChange], current: &CurrentFile, force: UndoForce) -> FileUndo {
    let (Some(first), Some(last)) = (changes.first(), changes.last()) else { return FileUndo::AsBefore };
    let current = match current {
        CurrentFile::Unreadable(reason) => return FileUndo::Conflict(UndoConflict::Unreadable(reason.clone())),
        CurrentFile::Absent => None,
        CurrentFile::Present { sha256 } => Some(sha256),
    };
    if current == first.before.as_ref() {
        return FileUndo::AsBefore;
    }
    if force == UndoForce::OwnChangesOnly {
        let follows = |pair: &[HashedChange]| pair[1].before == pair[0].after || pair[1].before == pair[0].before;
        if current != last.after.as_ref() && current != last.before.as_ref() {
            return FileUndo::Conflict(UndoConflict::ChangedSince);
        }
        if !changes.windows(2).all(follows) {
            return FileUndo::Conflict(UndoConflict::ChangedBetween);
        }
    }
    match (&first.before, first.has_content) {
        (None, _) => FileUndo::Remove,
        (Some(_), true) => FileUndo::Restore(first.number),
        (Some(_), false) => FileUndo::NotKept,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn hash(word: &str) -> Option<String> {
        (word != "-").then(|| word.to_owned())
    }

    /// Changes such as `a>b b>-`: from a content to another one; `-` is no file.
    fn changes(text: &str) -> Vec<HashedChange> {
        let change = |(number, pair): (i64, &str)| {
            let (before, after) = pair.split_once('>').unwrap();
            HashedChange {
                number,
                before: hash(before),
                after: hash(after),
                has_content: number == 1 && before != "big",
            }
        };
        (1..).zip(text.split(' ')).map(change).collect()
    }

    fn current(word: &str) -> CurrentFile {
        hash(word).map_or(CurrentFile::Absent, |sha256| CurrentFile::Present { sha256 })
    }

    #[rstest]
    #[case::changed("a>b", "b", FileUndo::Restore(1))]
    #[case::created("->b", "b", FileUndo::Remove)]
    #[case::deleted("a>-", "-", FileUndo::Restore(1))]
    #[case::twice("a>b b>c", "c", FileUndo::Restore(1))]
    #[case::created_and_deleted("->b b>-", "-", FileUndo::AsBefore)]
    #[case::not_written("a>b", "a", FileUndo::AsBefore)]
    #[case::last_not_written("a>b b>c", "b", FileUndo::Restore(1))]
    #[case::middle_not_written("a>b a>c", "c", FileUndo::Restore(1))]
    #[case::undone_by_hand("a>b b>c", "a", FileUndo::AsBefore)]
    #[case::too_large("big>b", "b", FileUndo::NotKept)]
    #[case::too_large_and_as_before("big>b", "big", FileUndo::AsBefore)]
    #[case::changed_since("a>b", "x", FileUndo::Conflict(UndoConflict::ChangedSince))]
    #[case::removed_since("a>b", "-", FileUndo::Conflict(UndoConflict::ChangedSince))]
    #[case::created_again("a>-", "x", FileUndo::Conflict(UndoConflict::ChangedSince))]
    #[case::changed_between("a>b x>c", "c", FileUndo::Conflict(UndoConflict::ChangedBetween))]
    fn an_undo_takes_back_only_what_the_run_wrote(#[case] done: &str, #[case] now: &str, #[case] wanted: FileUndo) {
        assert_eq!(plan_file_undo(&changes(done), &current(now), UndoForce::OwnChangesOnly), wanted);
    }

    #[rstest]
    #[case::since("a>b", "x", FileUndo::Restore(1))]
    #[case::removed("a>b", "-", FileUndo::Restore(1))]
    #[case::created("->b", "x", FileUndo::Remove)]
    #[case::between("a>b x>c", "c", FileUndo::Restore(1))]
    #[case::too_large("big>b", "x", FileUndo::NotKept)]
    fn a_forced_undo_overwrites_what_others_wrote(#[case] done: &str, #[case] now: &str, #[case] wanted: FileUndo) {
        assert_eq!(plan_file_undo(&changes(done), &current(now), UndoForce::OverwriteOthers), wanted);
    }

    #[test]
    fn what_is_no_file_is_never_replaced() {
        let current = CurrentFile::Unreadable("is a directory".into());
        for force in [UndoForce::OwnChangesOnly, UndoForce::OverwriteOthers] {
            let undo = plan_file_undo(&changes("a>b"), &current, force);
            assert_eq!(undo, FileUndo::Conflict(UndoConflict::Unreadable("is a directory".into())));
        }
    }
}
