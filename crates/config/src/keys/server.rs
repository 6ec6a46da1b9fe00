//! Keys of the HTTP server and its console.

use super::DefaultValue::{Nothing, Required, Value};
use super::KeyKind::{Address, Flag, List, Secret, Section, Size, Text};
use super::{COUNT, Key, SIZE, SPAN_ABOVE_ZERO, TEXTS};

pub(super) static SERVER: &[Key] = keys! {
    /// The address to listen on.
    "listen": Address => Value("127.0.0.1:8080");
    /// The bearer token; required off loopback.
    "token": Secret => Nothing;
    /// Refuse every request that changes something.
    "read-only": Flag => Value("false");
    /// The limit of one request body.
    "max-body": SIZE => Value("1MiB");
    /// The limit of one request head, start line included.
    "max-header": Size { min: 1024 } => Value("32KiB");
    /// Connections open at once; beyond, the longest idle one is closed.
    "max-connections": COUNT => Value("1024");
    /// How long a request head may take, and how long a connection may idle.
    "header-timeout": SPAN_ABOVE_ZERO => Value("10s");
    /// How long a request may take until its response begins.
    "request-timeout": SPAN_ABOVE_ZERO => Value("30s");
};

pub(super) static AUDIT: &[Key] = keys! {
    /// A file on another disk that `run` writes its witness to, once a minute.
    "witness": Text => Nothing;
};

pub(super) static CONSOLE: &[Key] = keys! {
    /// Filters that the console offers by name.
    "saved-filters": List(&Section(SAVED_FILTER)) => Nothing;
    /// Paths in records that the console hides; `*` stands for any name.
    "mask": TEXTS => Value("[]");
};

static SAVED_FILTER: &[Key] = keys! {
    /// The name of the filter.
    "name": Text => Required;
    /// The condition, in CEL.
    "cel": Text => Required;
};
