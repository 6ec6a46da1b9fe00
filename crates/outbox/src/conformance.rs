//! The rules that every store of the outbox must keep.
