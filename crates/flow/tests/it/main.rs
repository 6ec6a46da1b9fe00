//! Promises of the flow language.
