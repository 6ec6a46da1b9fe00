//! Constructs of the older language, and what is written instead.

/// A word that the older language had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unsupported {
    /// The word or sign where the text stops making sense.
    pub(super) word: &'static str,
    /// The code of its diagnostic.
    pub(super) code: &'static str,
}

/// The words by their code; they stay names wherever a name fits.
static UNSUPPORTED: [(&str, &str); 13] = [
    ("TG0801", "import"),
    (
        "TG0802",
        "phase markers signal business_date processing_date",
    ),
    ("TG0803", "sql"),
    (
        "TG0804",
        "parquet csv mongodb redis scheduler state_store kinesis pulsar",
    ),
    (
        "TG0805",
        "branch parallel schedule state_machine transition",
    ),
    ("TG0806", "call ml_service"),
    ("TG0807", "if let set endif"),
    ("TG0808", "evaluate add_flag adjust_score"),
    ("TG0809", "persist template payload"),
    ("TG0810", "emit_audit_event"),
    ("TG0811", "indefinitely log_error"),
    ("TG0812", "and or not is between ?? ?. ${"),
    ("TG0813", "backpressure transform_error broadcast"),
];

/// Words of the older language whose construct has an `end` of its own; an `if` has an `endif`.
const CLOSED: &str = "markers sql phase branch parallel state_machine schedule";

impl Unsupported {
    /// The construct that `word` belongs to.
    pub(super) fn find(word: &str) -> Option<Self> {
        UNSUPPORTED.iter().find_map(|(code, words)| {
            let word = words.split(' ').find(|other| *other == word)?;
            Some(Self { word, code })
        })
    }

    /// The word that ends the construct, so that its inside is not complained about as well.
    pub(super) fn closed_by(self) -> Option<&'static str> {
        match self.word {
            "if" => Some("endif"),
            word => CLOSED
                .split(' ')
                .any(|other| other == word)
                .then_some("end"),
        }
    }
}
