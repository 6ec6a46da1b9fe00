//! Keys of the HTTP server and its console.

use super::{COUNT, Key, KeyKind, SIZE, SPAN_ABOVE_ZERO, TEXTS, key, optional, required};

pub(super) static SERVER: &[Key] = &[
    key(
        "listen",
        KeyKind::Address,
        "127.0.0.1:8080",
        "The address to listen on.",
    ),
    optional(
        "token",
        KeyKind::Secret,
        "The bearer token; required off loopback.",
    ),
    key(
        "read-only",
        KeyKind::Flag,
        "false",
        "Refuse every request that changes something.",
    ),
    key("max-body", SIZE, "1MiB", "The limit of one request body."),
    key(
        "max-header",
        KeyKind::Size { min: 1024 },
        "32KiB",
        "The limit of one request head, start line included.",
    ),
    key(
        "max-connections",
        COUNT,
        "1024",
        "Connections open at once; beyond, the longest idle one is closed.",
    ),
    key(
        "header-timeout",
        SPAN_ABOVE_ZERO,
        "10s",
        "How long a request head may take, and how long a connection may idle.",
    ),
    key(
        "request-timeout",
        SPAN_ABOVE_ZERO,
        "30s",
        "How long a request may take until its response begins.",
    ),
];

pub(super) static CONSOLE: &[Key] = &[
    optional(
        "saved-filters",
        KeyKind::List(&KeyKind::Section(SAVED_FILTER)),
        "Filters that the console offers by name.",
    ),
    key(
        "mask",
        TEXTS,
        "[]",
        "Paths in records that the console hides; `*` stands for any name.",
    ),
];

static SAVED_FILTER: &[Key] = &[
    required("name", KeyKind::Text, "What the filter is called."),
    required("cel", KeyKind::Text, "The condition, in CEL."),
];
