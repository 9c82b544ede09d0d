//! The conformance suite: what every implementation of the store must do.
//!
//! An implementation writes a [`TestDatabase`] and calls [`conformance_tests`], which makes one test of each case.

pub(crate) mod amendments;
pub(crate) mod archive;
pub(crate) mod audit;
pub(crate) mod channels;
pub(crate) mod file_changes;
pub(crate) mod history;
pub(crate) mod journal;
pub(crate) mod lists;
pub(crate) mod notes;
pub(crate) mod ownership;
pub(crate) mod push_targets;
pub(crate) mod responses;
pub(crate) mod retention;
pub(crate) mod runs;
pub(crate) mod schedules;
pub(crate) mod small_areas;
pub(crate) mod spend;
pub(crate) mod webhooks;

use quell_protocol::audit::Action;
use quell_protocol::{AgentId, Principal, RunId, SessionKey, Surface, Usage};

use crate::{
    AcceptRunOutcome, ArchivedHistoryItem, AuditEntry, DeleteSessionOutcome, PrivateEndpoints, RunListFilter, RunRow,
    RunSpend, SealedTurn, SessionArchive, SessionListFilter, Store, StoreError, StoredRunState, StoredSession,
};

/// A database of its own for one test. It is deleted when it is dropped.
pub(crate) trait TestDatabase {
    /// False when the tests are skipped, because this machine has not what the database needs.
    fn is_available() -> bool {
        true
    }

    fn create() -> Self;

    /// Opens the database as a daemon does. The store of the previous daemon is closed.
    fn open(&self) -> Store;

    /// Opens the database while the store of another daemon is open, as after its lock was lost.
    fn take_over(&self) -> Store;

    fn count_indexed_notes(&self) -> i64;

    /// True when the database contains the name of an agent or a sender as a scope of notes.
    fn stores_scope_name(&self, name: &str) -> bool;
}

/// Makes a test of each case. `$database` is a [`TestDatabase`], as an absolute path; before it may stand an attribute of
/// the tests.
macro_rules! conformance_tests {
    ($database:path) => {
        $crate::conformance::conformance_tests! { #[cfg(test)] $database }
    };
    (#[$tier:meta] $database:path) => {
        $crate::conformance::conformance_tests! { @tests #[$tier] $database;
            amendments:
                an_amendment_is_kept_when_the_end_is_stored_again,
                a_receipt_that_knew_no_amendments_takes_one;
            archive:
                ended_runs_are_exported_in_order_and_others_left_out,
                an_import_is_listed_counts_its_turns_and_is_exported_as_it_was,
                a_refused_import_leaves_nothing,
                a_session_without_runs_has_its_own_place_in_the_list,
                a_long_session_is_handed_out_in_pieces_while_the_store_goes_on,
                a_closed_store_says_so_to_who_wants_a_copy;
            audit:
                entries_are_read_in_pages_from_the_oldest_on,
                origins_of_an_action_are_listed_once,
                old_entries_are_forgotten_and_their_numbers_never_used_again;
            channels:
                only_what_an_earlier_daemon_shows_is_left,
                what_was_left_is_given_to_one_daemon_each,
                what_was_left_in_channels_that_are_gone_is_forgotten,
                a_message_that_another_run_took_in_names_that_run,
                commands_that_have_acted_are_known_after_a_restart_the_newest_of_many;
            file_changes:
                changes_of_a_tree_come_back_in_order_and_without_contents,
                what_is_undone_is_marked_and_its_contents_are_gone,
                changes_go_with_their_run;
            history:
                turns_come_back_in_order_and_once,
                a_reset_hides_old_turns_from_the_model_and_not_from_people,
                a_second_reset_of_nothing_leaves_no_second_boundary,
                history_pages_run_from_new_to_old_without_a_gap,
                numbered_turns_begin_after_the_last_reset,
                a_deleted_session_is_gone_with_its_turns_and_runs,
                texts_come_back_unchanged;
            journal:
                lines_come_back_in_order_and_the_later_of_one_number_stands,
                the_journal_goes_with_the_turn_and_with_the_end,
                a_run_of_a_dead_daemon_is_sealed_once,
                a_daemon_whose_lock_was_taken_away_writes_no_more,
                what_is_durable_stays_so_beside_the_journal;
            lists:
                runs_page_from_new_to_old_while_new_ones_arrive,
                a_page_may_begin_behind_any_run,
                a_page_that_just_fits_has_no_cursor,
                runs_are_found_by_session_and_principal,
                open_runs_are_the_unfinished_ones_oldest_first,
                sessions_are_listed_by_last_use_and_searched,
                a_cursor_from_elsewhere_is_refused,
                the_hold_is_kept_whole_and_lifted,
                names_of_tokens_are_unique_and_a_revoked_token_is_gone,
                a_rotated_token_keeps_its_scopes_and_is_rotated_from_its_last_secret,
                the_restrictions_of_a_token_outlive_its_rotation;
            notes:
                a_key_stands_once_in_its_scope_and_the_last_word_counts,
                a_session_that_is_not_there_has_no_notes,
                notes_are_found_in_every_script,
                signs_are_found_together_and_not_one_by_one,
                no_query_is_a_wrong_one,
                scores_are_shares_and_order_the_answer,
                equal_scores_are_ordered_by_how_much_of_a_note_is_about_it,
                who_wrote_a_saved_message_is_no_word_of_it,
                a_scope_does_not_see_the_notes_of_another,
                a_reset_forgets_the_notes_of_the_session_and_no_others,
                a_deleted_session_leaves_no_note_and_no_word,
                a_deleted_agent_leaves_no_note_to_another_one_of_its_name,
                a_note_is_forgotten_by_its_key,
                senders_are_listed_by_their_newest_note,
                a_forgotten_sender_leaves_no_note_no_word_and_no_name,
                the_name_of_a_sender_goes_with_the_last_note,
                pages_of_notes_run_from_new_to_old_without_a_gap;
            ownership:
                the_first_sender_owns_a_session_and_chooses_its_agent,
                a_session_is_configured_by_its_owner_or_freely_and_stays_its_owners,
                a_receipt_outlives_its_session_and_nothing_takes_its_place,
                retention_keeps_receipts_and_forgets_them_by_age_or_number,
                a_receipt_is_as_old_as_the_deletion_of_its_session,
                lists_show_what_is_a_principals_or_shared;
            retention:
                old_runs_of_an_agent_go_and_their_session_stays,
                the_oldest_use_comes_first_and_what_has_open_runs_not_at_all,
                a_session_goes_whole_with_its_entry_unless_it_was_used_meanwhile;
            push_targets:
                a_push_target_stands_once_and_its_owner_has_few,
                push_targets_are_deleted_by_key_by_owner_and_with_their_run,
                targets_of_ended_runs_of_a_dead_daemon_are_taken_over_once;
            responses:
                a_response_is_found_until_it_expires_or_is_deleted,
                the_end_of_a_response_never_changes,
                a_conversation_is_a_chain_of_items,
                a_deleted_conversation_takes_no_more_items,
                a_conversation_has_one_open_response,
                a_conversation_is_read_in_pages_and_changed,
                old_responses_and_conversations_go_and_open_ones_stay,
                the_oldest_go_first_and_the_room_of_an_owner_is_counted,
                an_old_conversation_goes_with_its_last_response,
                an_open_response_of_a_daemon_that_is_gone_is_abandoned;
            runs:
                two_hundred_callers_at_once_each_get_their_own_answer,
                a_repeat_answers_the_first_run_and_changes_nothing,
                a_run_only_moves_forward,
                a_run_that_is_stored_at_its_end_is_stored_once_with_its_turn,
                a_turn_recorded_after_the_end_leaves_the_receipt_alone,
                a_steered_run_says_where_its_text_went_and_is_not_open,
                an_unknown_run_is_named,
                a_turn_of_another_session_is_refused;
            schedules:
                schedules_survive_a_restart_ordered_by_id,
                a_schedule_is_changed_by_one_of_two,
                many_schedules_change_at_once_each_by_its_revision,
                a_schedule_is_found_by_its_id,
                nobody_has_more_schedules_than_the_quota,
                a_firing_stores_its_run_and_schedule_at_once,
                nothing_fires_while_new_runs_are_held;
            small_areas:
                an_agent_is_created_once_and_listed_by_id,
                a_cookie_lasts_until_its_expiry_and_no_longer_than_its_token,
                the_last_cursor_of_a_channel_is_kept,
                the_last_use_of_a_session_only_moves_forward,
                usage_outside_of_runs_is_added_to_its_day;
            spend:
                an_end_that_is_stored_again_counts_only_what_is_new,
                a_run_is_counted_once_for_its_key_with_its_cost,
                a_deleted_run_is_counted_and_its_day_stays,
                a_run_that_a_crash_left_is_counted_when_it_is_sealed;
            webhooks:
                webhooks_keep_their_order_for_each_url_and_survive_a_restart,
                an_event_waits_for_one_receiver_once,
                a_try_without_success_is_counted_and_changes_no_order,
                of_too_many_the_oldest_go_and_are_counted,
                webhooks_for_other_urls_are_deleted;
        }
    };
    (@tests #[$tier:meta] $database:path; $($area:ident: $($case:ident),+;)+) => {
        $(mod $area {
            $(
                #[tokio::test]
                #[$tier]
                async fn $case() {
                    if <$database as $crate::conformance::TestDatabase>::is_available() {
                        $crate::conformance::$area::$case::<$database>().await;
                    }
                }
            )+
        })+
    };
}

pub(crate) use conformance_tests;

pub(crate) fn new_store<D: TestDatabase>() -> (Store, D) {
    let database = D::create();
    (database.open(), database)
}

pub(crate) fn run_id(text: &str) -> RunId {
    RunId::parse(text).unwrap()
}

pub(crate) fn session_key(text: &str) -> SessionKey {
    SessionKey::parse(text).unwrap()
}

/// A run that used no tokens.
pub(crate) fn no_spend() -> RunSpend {
    let (agent, usage) = (AgentId::parse("main").unwrap(), Usage::default());
    let (day, already_counted) = ("2026-01-01".to_owned(), usage);
    RunSpend { agent, day, usage, already_counted, key: None, cost: 0, cost_already_counted: 0 }
}

pub(crate) fn accepted_row(id: &str, session: &str) -> RunRow {
    RunRow {
        id: run_id(id),
        session: session_key(session),
        agent: AgentId::parse("main").unwrap(),
        principal: Principal::parse("admin").unwrap(),
        fingerprint: format!("hash of {id}"),
        state: StoredRunState::Accepted,
        accepted_at: "2026-11-20T10:00:00.000000Z".into(),
        view: format!("accepted {id}"),
    }
}

pub(crate) async fn append_turn(
    store: &Store,
    session: &str,
    run: &str,
    turn: &str,
    view: &str,
) -> Result<(), StoreError> {
    let (session, run) = (session_key(session), run_id(run));
    store.history().append_turn(SealedTurn { session, run, turn: turn.into(), view: view.into() }).await
}

/// The turns of a session after its last reset.
pub(crate) async fn turns(store: &Store, session: &str) -> Vec<String> {
    store.history().turns(session_key(session)).await.unwrap()
}

pub(crate) async fn find_run(store: &Store, id: &str) -> RunRow {
    store.runs().find(run_id(id)).await.unwrap().unwrap()
}

pub(crate) async fn find_session(store: &Store, key: &str) -> StoredSession {
    store.sessions().find(session_key(key)).await.unwrap().unwrap()
}

pub(crate) async fn accept_run(store: &Store, id: &str, session: &str) {
    assert_eq!(store.runs().accept(accepted_row(id, session)).await, Ok(AcceptRunOutcome::New));
}

/// Takes a run through all its states.
pub(crate) async fn run_to_end(store: &Store, id: &str, session: &str) {
    accept_run(store, id, session).await;
    store.runs().record_start(run_id(id), format!("started {id}")).await.unwrap();
    append_turn(store, session, id, &format!("turn {id}"), &format!("ending {id}")).await.unwrap();
    store.runs().record_end(run_id(id), format!("ended {id}"), no_spend()).await.unwrap();
}

/// An archive of a session that ended at the beginning of 2020.
pub(crate) fn session_archive(session: &str, runs: Vec<RunRow>, history: Vec<ArchivedHistoryItem>) -> SessionArchive {
    let session = StoredSession {
        key: session_key(session),
        agent: AgentId::parse("writer").unwrap(),
        created_at: "2020-01-01T00:00:00.000000Z".into(),
        last_used_at: "2020-01-02T00:00:00.000000Z".into(),
        turns: 0,
        config: None,
        secrets: None,
        private_endpoints: PrivateEndpoints::default(),
        owner: None,
        shared: false,
        imported_at: None,
    };
    SessionArchive { session, runs, history, notes: Vec::new() }
}

/// The audit entry of a deletion by the daemon.
pub(crate) fn deletion_entry(at: &str, target: &str) -> AuditEntry {
    AuditEntry {
        at: at.into(),
        principal: Principal::parse("quell").unwrap(),
        surface: Surface::Daemon,
        from: None,
        action: Action::DeleteSession,
        target: Some(target.into()),
        detail: None,
    }
}

/// Deletes a session whose open runs are said to have ended.
pub(crate) async fn delete_session(store: &Store, session: &str, ended: &[&str]) -> DeleteSessionOutcome {
    let ended = ended.iter().map(|id| run_id(id)).collect();
    store.sessions().delete(session_key(session), ended, "2026-12-01T00:00:00.000000Z".into()).await.unwrap()
}

pub(crate) fn all_runs() -> RunListFilter {
    RunListFilter { session: None, principal: None, visible_to: None, limit: 100, cursor: None }
}

pub(crate) fn all_sessions() -> SessionListFilter {
    SessionListFilter { search: None, limit: 100, cursor: None, visible_to: None }
}

/// Reads a list from its first page to its last. `read_page` gets the cursor of a page.
pub(crate) async fn read_all<T>(read_page: impl AsyncFn(Option<String>) -> (Vec<T>, Option<String>)) -> Vec<T> {
    let (mut rows, mut cursor) = read_page(None).await;
    while cursor.is_some() {
        let (page, next) = read_page(cursor).await;
        rows.extend(page);
        cursor = next;
    }
    rows
}

pub(crate) fn run_ids(rows: &[RunRow]) -> Vec<&str> {
    rows.iter().map(|row| row.id.as_str()).collect()
}
