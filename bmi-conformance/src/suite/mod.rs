//! The list of all behaviours, and the test program that runs them over a backend.

mod table;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use crate::backend::Backend;
use crate::net::Net;

/// A behaviour: its name and its test.
struct Behaviour {
    /// Level, module and function, as in `transport::connect::several_listeners`.
    name: &'static str,
    /// The test. It panics if the backend does not have the behaviour.
    test: fn(&dyn Backend),
}

impl Behaviour {
    /// Returns level and module, which is a row of the table.
    fn part(&self) -> &'static str {
        self.name.rsplit_once("::").map_or(self.name, |(part, _)| part)
    }
}

macro_rules! behaviours {
    ($($level:ident :: $module:ident { $($test:ident),* $(,)? })*) => {
        &[$($(Behaviour {
            name: concat!(stringify!($level), "::", stringify!($module), "::", stringify!($test)),
            test: behaviours!(@$level $module $test),
        },)*)*]
    };
    (@transport $module:ident $test:ident) => { crate::transport::$module::$test };
    (@message $module:ident $test:ident) => {
        |backend| {
            let net = Net::new(backend);
            net.run(crate::message::$module::$test(&net));
        }
    };
}

/// All behaviours. This list is the only place where a behaviour is registered.
const BEHAVIOURS: &[Behaviour] = behaviours! {
    transport::connect {
        private_data_travels_both_ways, both_sides_are_told_who_is_there, too_long_private_data_is_invalid, rejection_carries_a_reason,
        nobody_listens_is_refused, silent_listener_ends_in_time_out, passed_deadline_ends_at_once,
        foreign_scheme_is_invalid, several_listeners, receives_are_posted_before_established,
        what_each_phase_takes, many_connections, names_are_never_used_twice,
        slots_are_used_again_after_the_end, three_adapters,
    }
    transport::channel {
        gather_and_scatter, inline_is_copied_while_posting, limits_are_enforced, foreign_segments_are_invalid,
        order_in_both_directions, unsignalled_sends, memory_is_held_until_completion, full_queues_hand_back,
        receiver_not_ready_ends_the_connection, too_long_ends_the_connection, refused_sends_report_alike,
        large_messages, read_only_memory_is_never_written,
    }
    transport::inline_receive {
        taken_or_received_each_comes_once, every_other_is_taken, one_connection_takes_and_one_does_not,
        both_sides_take, immediate_data_beside_messages_that_are_taken, nothing_is_shown_outside_a_connections_life,
        too_long_is_not_shown, a_message_without_a_receive_is_not_shown,
    }
    transport::remote {
        writes_land_where_they_should, messages_come_behind_writes, immediate_data,
        immediate_data_without_a_receive, reads_bring_what_is_there, many_reads, chains_of_reads,
        work_beyond_its_target_is_invalid, forged_access_costs_the_connection, zero_length_access_is_checked,
        exposure_belongs_to_one_connection, revoked_access_costs_the_connection, exposures_hold_their_region,
    }
    transport::immediate_access {
        lists_of_any_shape, order_with_what_is_posted, what_posting_would_refuse,
    }
    transport::end {
        disconnect_flushes_receives, disconnect_hands_over_what_was_posted, passed_deadline_cuts,
        disconnect_twice, disconnect_from_a_stalled_peer, dropped_adapter_ends_its_connections,
        dropped_adapter_lets_go, dropped_while_connecting, unknown_names, a_stalled_peer_stalls_nobody_else,
    }
    transport::waiting {
        event_fd_as_announced, arrivals_wake, one_poll_behind_a_post_wakes,
        a_sleeper_gets_a_large_message_whole, waker_wakes, idle_is_idle,
    }
    message::expected {
        sizes_around_the_eager_limit, lists_of_different_shapes, tags_match_in_order, extreme_tags,
        short_receives, too_long_for_the_receive, limits_of_messages, many_outstanding, memory_comes_back,
        registered_ahead, stale_peer_is_an_error, read_only_memory_is_never_written,
    }
    message::unexpected {
        arrive_without_a_receive, over_the_limit_is_too_long, expected_and_unexpected_do_not_mix,
        a_crowd_waits_its_turn, held_messages_hold_their_slots, messages_outlive_their_peer, several_tasks_wait,
    }
    message::credits {
        exhausted_in_messages, exhausted_in_bytes, exhausted_in_both_directions, credits_return_on_their_own,
        one_peer_cannot_starve_another, a_starved_send_times_out, unmatched_are_parked,
    }
    message::deadlines {
        receive_never_matched, rendezvous_never_matched, connect_to_a_silent_listener, peer_stops_polling,
        already_passed, late_bytes_touch_nothing, timers_in_order, next_deadline_is_the_earliest,
    }
    message::offered_receive {
        receives_posted_ahead, offers_cross_messages, an_offer_that_is_late_beside_another_tag,
        offers_are_withdrawn,
    }
    message::cancel {
        unmatched_receive, unmatched_rendezvous, send_without_a_credit, connecting_is_given_up, stale_ids_are_harmless,
        abandoned_operations, in_every_state, futures_are_dropped_at_any_time,
    }
    message::polling {
        one_some_and_all, completion_at_once, uncollected_completions_stay, an_idle_endpoint_is_idle,
    }
    message::bulk {
        pull_between_any_two_lists, push_between_any_two_lists, descriptors_travel, thousands_of_pieces,
        cancelled_between_pieces, out_of_range_is_refused_here,
        many_transfers, bulk_beside_messages, exposures_are_held_and_come_back, exposures_outlive_their_peer,
        forged_descriptors_cut_only_the_forger, descriptors_belong_to_one_peer, revoked_descriptors_are_dead,
    }
    message::immediate {
        over_when_posted, beside_long_ones, what_is_wrong_is_said,
    }
    message::fast {
        messages_of_middle_size_go_fast, lists_without_pieces, order_across_all_paths, unexpected_messages_of_middle_size,
        registered_memory_is_gathered, without_slots,
    }
    message::calls {
        every_path_both_ways, pages_are_lent_as_announced, calls_with_little_of_everything, the_policy_is_followed_and_told,
        slots_run_out_and_come_back, long_replies_and_requests, grants_end, a_dead_client_leaves_nothing,
        any_lists_by_any_path, lists_are_packed_on_no_side_on_one_or_on_both, nonsense_is_no_call,
        replies_that_cannot_be_right,
    }
    message::late {
        a_late_reply_reaches_no_other_call, late_messages_keep_no_credit, what_arrived_for_a_call_goes_with_it,
        a_move_that_the_server_ends_early_ends_its_call_alone,
        a_dropped_request_ends_its_call, replies_shorter_than_their_memory, discards,
        dropped_while_the_endpoint_is_in_use, reserved_tags_are_refused,
    }
    message::peers {
        limits_are_agreed, refused_connect_names_the_address, work_waits_for_the_connection,
        a_dead_peer_ends_every_operation, a_dead_caller_is_forgotten, disconnect_flushes,
        disconnect_ends_receives, disconnect_has_a_deadline, reconnecting_works,
        a_restarted_peer_is_reached_again, two_connections_are_two_peers, three_endpoints_talk_at_once,
        events_tell_who_came_and_went, an_evicted_peer_is_told,
    }
    message::identity {
        both_sides_learn_who_is_there, who_is_not_let_in_is_told, a_listener_that_is_not_the_right_one_gets_nothing,
    }
    message::hostile {
        garbage_hello_is_refused, mismatch_names_what_is_missing, garbage_acceptance,
        bad_messages_cut_their_sender, forged_slots, overdrawn_credits, forged_finish, forged_written, wants,
        announced_but_not_exposed,
        random_messages,
    }
    message::memory { back_when_a_transfer_ends, back_when_a_message_ends }
    message::recycled {
        a_grant_holds_nothing_of_others, a_grant_is_pushed_whole, slots_hold_nothing_of_others,
        a_probe_area_holds_nothing_of_others, packed_reads_hold_nothing_of_others,
        offered_memory_is_revoked_before_it_is_used_again,
    }
    message::property { any_messages, any_bulk }
    message::rough { everything_ends_and_comes_back }
    transport::shards {
        connections_are_spread_evenly, members_are_left_out, the_end_of_a_connection_counts, each_member_is_an_adapter,
        each_member_may_listen, a_group_of_one, a_handed_over_connection_wakes,
        a_member_that_does_not_poll_stalls_nobody, what_waits_for_a_dropped_member_is_served,
        a_dropped_listener_leaves_what_it_handed_over,
    }
};

/// The suite over the configurations of a backend. It is the whole of a test program that has no
/// harness of its own, and takes the arguments of an ordinary test program.
///
/// ```text
/// fn main() -> std::process::ExitCode {
///     Suite::new("mine").over("plain", || MyBackend::new()).run()
/// }
/// ```
pub struct Suite {
    backend: &'static str,
    trials: Vec<Trial>,
    is_full: bool,
    is_ignored: bool,
}

impl Suite {
    /// Creates a suite for the backend of this name. Runs what the table lists for it; with
    /// `BMI_FULL` in the environment, or if the table does not know the backend, everything.
    pub fn new(backend: &'static str) -> Suite {
        let is_full = std::env::var_os("BMI_FULL").is_some();
        Suite { backend, trials: Vec::new(), is_full, is_ignored: false }
    }

    /// Marks what is added from now on as ignored, because it needs what most machines lack.
    #[must_use]
    pub fn ignored(mut self) -> Suite {
        self.is_ignored = true;
        self
    }

    /// Adds a configuration. `make` creates the backend, once for each test.
    #[must_use]
    pub fn over<B: Backend + 'static>(mut self, configuration: &'static str, make: fn() -> B) -> Suite {
        let has_shards = make().has_shards();
        for behaviour in BEHAVIOURS {
            let part = behaviour.part();
            let is_asked_for = self.is_full || table::has(self.backend, configuration, part);
            if is_asked_for && (has_shards || part != "transport::shards") {
                let test = move || {
                    check(&make(), behaviour);
                    Ok(())
                };
                let name = format!("{configuration}::{}", behaviour.name);
                self.trials.push(Trial::test(name, test).with_ignored_flag(self.is_ignored));
            }
        }
        self
    }

    /// Runs the tests that the command line selects.
    pub fn run(self) -> ExitCode {
        libtest_mimic::run(&Arguments::from_args(), self.trials).exit_code()
    }
}

/// Runs the behaviour of this name over a backend, after checking that its capability set is the
/// pinned one.
///
/// # Panics
/// If the backend does not have the behaviour, if its capabilities differ from the pinned ones, or
/// if there is no behaviour of this name.
pub fn run(backend: &dyn Backend, name: &str) {
    let behaviour = BEHAVIOURS.iter().find(|behaviour| behaviour.name == name);
    check(backend, behaviour.unwrap_or_else(|| panic!("no behaviour is called {name}")));
}

fn check(backend: &dyn Backend, behaviour: &Behaviour) {
    assert_eq!(
        backend.transport("capabilities").capabilities(),
        &backend.expected_capabilities(),
        "the capabilities of {} are not those that it pins",
        backend.name()
    );
    (behaviour.test)(backend);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Returns the number of behaviours in a file, which all are in the list.
    fn listed(level: &str, path: &Path) -> usize {
        let text = std::fs::read_to_string(path).unwrap();
        let module = path.file_stem().unwrap().to_str().unwrap();
        let mut found = 0;
        for line in text.lines() {
            let test = line.strip_suffix("(backend: &dyn Backend) {").and_then(|line| line.strip_prefix("pub fn "));
            let test = test.or_else(|| line.strip_prefix("pub async fn ")?.strip_suffix("(net: &Net<'_>) {"));
            let Some(test) = test else { continue };
            let name = format!("{level}::{module}::{test}");
            assert!(BEHAVIOURS.iter().any(|behaviour| behaviour.name == name), "{name} is not in the list");
            found += 1;
        }
        found
    }

    /// Invariant 3 of the crate: each `pub fn` of a test module is in the list.
    #[test]
    fn every_behaviour_is_listed() {
        let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut found = 0;
        for level in ["transport", "message"] {
            let mut folders = vec![src.join(level)];
            while let Some(folder) = folders.pop() {
                for file in std::fs::read_dir(folder).unwrap() {
                    let path = file.unwrap().path();
                    if path.is_dir() {
                        folders.push(path);
                        continue;
                    }
                    found += listed(level, &path);
                }
            }
        }
        assert_eq!(found, BEHAVIOURS.len());
    }

    #[test]
    fn every_part_has_a_row() {
        let parts: BTreeSet<&str> = BEHAVIOURS.iter().map(Behaviour::part).collect();
        let rows: BTreeSet<&str> = table::rows().collect();
        assert_eq!(parts, rows);
    }
}
