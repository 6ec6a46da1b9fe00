//! Types and values of records.
