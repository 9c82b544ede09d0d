//! Who may read, use and manage sessions and runs.
//!
//! A session belongs to the principal that created it. It is private until its owner shares it. Stops are not decided
//! here: whoever may not read a run must not be able to keep others from stopping it.

use quell_protocol::Principal;

/// A caller, as far as ownership matters. An admin has all rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Viewer {
    pub principal: Principal,
    /// May read the sessions and runs of others.
    pub read_all: bool,
    /// May read, use, share, reset and delete the sessions of others.
    pub write_all: bool,
}

/// Who besides its owner may read a session and send messages to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    #[default]
    Private,
    /// Every caller that may read or send at all.
    Shared,
}

/// The owner of an existing session, and whether it is shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionOwnership {
    /// `None` where nobody knows.
    pub owner: Option<Principal>,
    pub sharing: Sharing,
}

impl Viewer {
    fn owns(&self, session: &SessionOwnership) -> bool {
        session.owner.as_ref() == Some(&self.principal)
    }

    /// True if it may see everything that anybody does.
    #[must_use]
    pub fn reads_all(&self) -> bool {
        self.read_all || self.write_all
    }

    #[must_use]
    pub fn may_read_session(&self, session: &SessionOwnership) -> bool {
        self.reads_all() || self.owns(session) || session.sharing == Sharing::Shared
    }

    /// True if it may send messages to the session.
    #[must_use]
    pub fn may_use_session(&self, session: &SessionOwnership) -> bool {
        self.write_all || self.owns(session) || session.sharing == Sharing::Shared
    }

    /// True if it may share, reset and delete the session, and forget its notes.
    #[must_use]
    pub fn may_manage_session(&self, session: &SessionOwnership) -> bool {
        self.write_all || self.owns(session)
    }

    /// Checks a run of `principal`. `session` is `None` if its session does not exist any more.
    #[must_use]
    pub fn may_read_run(&self, principal: &Principal, session: Option<&SessionOwnership>) -> bool {
        self.reads_all()
            || *principal == self.principal
            || session.is_some_and(|session| self.may_read_session(session))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(name: &str) -> Principal {
        Principal::parse(name).expect("a principal")
    }

    fn viewer(name: &str, rights: &str) -> Viewer {
        let (read_all, write_all) = (rights == "read:all", rights == "write:all");
        Viewer { principal: principal(name), read_all, write_all }
    }

    fn session(owner: Option<&str>, sharing: Sharing) -> SessionOwnership {
        SessionOwnership { owner: owner.map(principal), sharing }
    }

    /// Rows: viewer, session, then read, use, manage.
    #[test]
    fn everybody_sees_what_is_theirs_and_what_is_shared() {
        let private = session(Some("ann"), Sharing::Private);
        let shared = session(Some("ann"), Sharing::Shared);
        let nobodys = session(None, Sharing::Private);
        let cases = [
            (viewer("ann", ""), &private, [true, true, true]),
            (viewer("bob", ""), &private, [false, false, false]),
            (viewer("bob", "read:all"), &private, [true, false, false]),
            (viewer("bob", "write:all"), &private, [true, true, true]),
            (viewer("bob", ""), &shared, [true, true, false]),
            (viewer("ann", ""), &shared, [true, true, true]),
            (viewer("ann", ""), &nobodys, [false, false, false]),
            (viewer("ann", "read:all"), &nobodys, [true, false, false]),
        ];
        for (viewer, session, expected) in cases {
            let rights =
                [viewer.may_read_session(session), viewer.may_use_session(session), viewer.may_manage_session(session)];
            assert_eq!(rights, expected, "{viewer:?} {session:?}");
        }
    }

    #[test]
    fn a_run_is_read_by_its_principal_and_by_readers_of_its_session() {
        let (ann, bob) = (principal("ann"), viewer("bob", ""));
        let of_bob = session(Some("bob"), Sharing::Private);
        assert!(bob.may_read_run(&principal("bob"), None), "also when the session is deleted");
        assert!(bob.may_read_run(&ann, Some(&of_bob)), "what others do in one's own session");
        assert!(!bob.may_read_run(&ann, None));
        assert!(!bob.may_read_run(&ann, Some(&session(Some("ann"), Sharing::Private))));
        assert!(bob.may_read_run(&ann, Some(&session(Some("ann"), Sharing::Shared))));
        assert!(viewer("bob", "read:all").may_read_run(&ann, None));
    }
}
