//! This test program as a process that another test kills.

/// Does nothing, unless a test started it as its child.
#[test]
fn child_process_entry() {
    crate::chaos::run_child();
}
