//! Acceptance of the event client: the promises A and L, each by a test whose name begins with its
//! number. Most of it runs in simulation; [`real`], [`hanging`] and [`http`] are what only threads, files,
//! processes and sockets can show.
//!
//! The crash points of the spill directory (A08), its sealed files (L25) and its caps at their bounds
//! are not here but in `src/spill/tests.rs`. Everything at once is in [`simulation`].
//!
//! The known weaknesses of the documented design, and the tests that fail on them:
//!
//! | weakness | tests |
//! |---|---|
//! | W1 shutdown race | `l50_…` (four), `l51_…`, `l52_…` (two) |
//! | W2 kill −9 takes the memory | `l26_events_of_log_durable_survive_a_power_cut_at_once`, `a08_a_kill_takes_at_most_what_was_in_memory_…` |
//! | W3 no sync | `l26_log_durable_does_not_return_before_the_sync`, `l27_a_power_cut_at_any_operation_…` |
//! | W4 torn line, then append | `l34_a_torn_last_line_…` |
//! | W5 corrupt lines deleted | `l35_…` (three), `a09_events_set_aside_are_in_their_file_byte_for_byte` |
//! | W6 caps lose in silence | `l21_the_event_cap_…`, `l21_the_size_cap_…`, `l23_block_waits_for_room_and_loses_nothing` |
//! | W7 write errors tell nobody | `l24_a_write_error_reaches_callback_and_counter_…`, `a06_a_disk_that_fails_twice_…` |
//! | W8 breaker open, refused enqueue ignored | `l09_with_the_breaker_open_…` |
//! | W9 two processes, one directory | `l28_a_second_opening_of_the_directory_…` |
//! | W10 one invalid byte stops all | `l35_one_invalid_byte_…` |
//! | W11 one rejected event stops all | `l36_a_rejected_event_at_the_head_…` |
//! | W12 replay one by one | `l31_a_backlog_goes_out_in_batches_and_not_one_by_one` |
//! | W13 replay and the breaker | `l08_replay_is_a_probe_as_well_…`, `l08_after_the_reset_time_exactly_one_probe_…` |
//! | W14 a crash resends without a key | `l38_after_a_kill_between_send_and_cursor_…` |
//! | W15 rewriting, whole file in memory | `l32_after_a_failure_at_line_two_of_three_…`, `l39_…` (two) |
//! | W16 order | `l41_…` (three), `l33_events_spilled_during_replay_…` |
//! | W17 sums and bounds | `a01_the_books_balance_at_every_step`, `l29_disk_use_stays_within_the_caps_…` |
//! | W18 partial failure counts as success | `l07_a_batch_with_a_transient_failure_in_it_…`, `l10_…` (two) |

#![expect(clippy::unwrap_used, reason = "what fails in a helper fails its test")]

mod ahead;
mod audit;
mod breaker;
mod fixture;
mod gate;
mod golden;
mod hanging;
mod http;
mod losses;
mod outcomes;
mod probed_disk;
mod queue;
mod real;
mod replay;
mod room;
mod shutdown;
mod simulation;
mod spill;
