//! Where a mistake loses or doubles an event, and which tests must notice it.

/// Files of one package and the tests that judge them.
#[derive(Debug)]
pub(crate) struct Scope {
    pub(crate) package: &'static str,
    /// Globs below the package's `src`; each must name a file.
    pub(crate) files: &'static [&'static str],
    /// Test programs, the fastest first; the next is asked only about what the one before let pass.
    pub(crate) stages: &'static [Stage],
}

/// One test program.
#[derive(Debug)]
pub(crate) struct Stage {
    /// The targets that cargo is asked to build.
    pub(crate) target: &'static [&'static str],
    /// Tests that take long.
    pub(crate) skip: &'static [&'static str],
}

/// Mutants that these tests cannot judge, by their names in cargo-mutants. Without a server nothing of
/// PostgreSQL runs, and only people read the output of `Debug`. Of a `StoreFuture`, a future in a box, no
/// guess of cargo-mutants compiles.
pub(crate) const NOT_JUDGED: &[&str] = &[
    "_postgres",
    "impl Debug for",
    "impl fmt::Debug for",
    "-> StoreFuture<",
];

const LIBRARY: Stage = Stage {
    target: &["--lib"],
    skip: &[],
};
/// The unit tests of the log without those that play thousands of crashes, which take minutes.
const QUICK_LIBRARY: Stage = Stage {
    target: &["--lib"],
    skip: &[
        "embedded::tests::crashes::",
        "embedded::tests::havoc::",
        "embedded::tests::lives::",
        "full_starts::t35_a_start_that_has_to_wait",
        "repairs::after_any_damage",
    ],
};
const ACCEPTANCE: Stage = Stage {
    target: &["--test", "it"],
    skip: &[],
};
const CONFORMANCE: Stage = Stage {
    target: &["--test", "conformance"],
    skip: &[],
};

/// Every file, those that are the cheapest to judge first. A program that has no test of a file is not
/// asked about it.
///
/// Code that only runs beside a server is not here: `queue/src/sql/postgres` and all of `log/src/kafka`
/// that talks to a broker. Its tests need that server, and a judgment would be one about its speed.
pub(crate) const SCOPES: &[Scope] = &[
    Scope {
        package: "tidegate-core",
        files: &[
            "books/*.rs",
            "decide.rs",
            "backoff.rs",
            "breaker.rs",
            "breaker/*.rs",
            "pause.rs",
            "poison.rs",
            "dead_letter.rs",
            "dead_letter/*.rs",
        ],
        stages: &[LIBRARY, ACCEPTANCE],
    },
    Scope {
        package: "tidegate-store",
        files: &["posting.rs", "posting/*.rs", "lease.rs"],
        stages: &[LIBRARY, ACCEPTANCE],
    },
    Scope {
        package: "tidegate-queue",
        files: &[
            "decide.rs",
            "dispatch/state.rs",
            "dispatch/state/handler_results.rs",
            "dispatch/claimer.rs",
            "dispatch/ready.rs",
            "sql/claim.rs",
        ],
        stages: &[LIBRARY, ACCEPTANCE],
    },
    Scope {
        package: "tidegate-queue",
        files: &[
            "dispatch/settler.rs",
            "sql/settle.rs",
            "sql/maintain.rs",
            "sql/projection.rs",
            "sql/sqlite.rs",
            "sql/sqlite/*.rs",
        ],
        stages: &[ACCEPTANCE],
    },
    Scope {
        package: "tidegate-logger",
        files: &["engine.rs", "spilling.rs", "spill.rs", "spill/**/*.rs"],
        stages: &[LIBRARY, ACCEPTANCE],
    },
    Scope {
        package: "tidegate-logger",
        files: &[
            "sender.rs",
            "batch_guard.rs",
            "state.rs",
            "replayer.rs",
            "writer.rs",
            "writer/flush.rs",
            "writer/spill_buffer.rs",
        ],
        stages: &[ACCEPTANCE],
    },
    Scope {
        package: "tidegate-log",
        files: &[
            "commit_order.rs",
            "embedded/journal.rs",
            "embedded/writer.rs",
            "embedded/recover.rs",
            "embedded/recover/*.rs",
            "embedded/state.rs",
            "embedded/state/*.rs",
            "embedded/pending.rs",
            "embedded/change.rs",
            "embedded/chunk.rs",
            "embedded/segment.rs",
            "embedded/manifest.rs",
            "embedded/scan.rs",
            "embedded/secret.rs",
            "embedded/maintenance/retention.rs",
            "embedded/maintenance/compaction.rs",
            "local/group.rs",
        ],
        stages: &[QUICK_LIBRARY, CONFORMANCE, LIBRARY],
    },
    Scope {
        package: "tidegate-log",
        files: &["local/commit.rs", "local/members.rs", "local/session.rs"],
        stages: &[CONFORMANCE],
    },
    Scope {
        package: "tidegate-log",
        files: &[
            "kafka/session/session_cell.rs",
            "kafka/session/transaction_step.rs",
            "kafka/session/session_state.rs",
            "kafka/session/commit_entries.rs",
        ],
        stages: &[QUICK_LIBRARY],
    },
];
