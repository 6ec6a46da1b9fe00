//! The table of codes.

use tidegate_config::Severity;

use super::DiagnosticCode;

/// A row per code: whether it is an error or a warning, the check, its cause, and the repair. The example is the file
/// that its test reads.
macro_rules! codes {
    ($($code:literal $kind:ident $text:literal, $cause:literal, $repair:literal;)*) => {
        &[$(DiagnosticCode {
            code: $code,
            severity: codes!(@$kind),
            text: $text,
            cause: $cause,
            example: include_str!(concat!("../../codes/", $code, ".flow")),
            repair: $repair,
        }),*]
    };
    (@E) => { Severity::Problem };
    (@W) => { Severity::Warning };
}

/// Every code of the language, in order.
pub static CODES: &[DiagnosticCode] = codes! {
    "TG0001" E "unexpected character",
        "The text has a character that begins no word, number, text or sign.",
        "Remove it, or put it into double quotes if it is meant as text.";
    "TG0002" E "unterminated text or comment",
        "A text ends with its line, and a block comment needs its closing sign.",
        "Write the closing quote, or `*/` after the comment.";
    "TG0003" E "bad number or duration",
        "A duration is one whole number and one unit, from milliseconds to weeks.",
        "Write one number and one unit, for instance `90 seconds` or `90s`.";
    "TG0010" E "expected something else",
        "The grammar allows other words at this place.",
        "Write one of the expected words, or put a name that is also a word into backquotes.";
    "TG0011" E "missing `end`",
        "A process, declaration or block was opened and not closed.",
        "Write `end` where the opened part is over.";
    "TG0012" E "expression does not compile",
        "CEL cannot read the expression.",
        "Mend the expression at the place that is shown.";
    "TG0013" E "given twice",
        "A setting, block, clause or field may be given once.",
        "Keep one of the two.";
    "TG0014" E "reserved name",
        "Reserved words are never names, and names with `_` in front are metadata of the record.",
        "Choose another name, or write the word in backquotes.";
    "TG0015" W "name is not in snake_case",
        "Names of streams and state become names of topics and metrics, where capitals are easily confused.",
        "Write the name in small letters, with `_` between its words.";
    "TG0016" E "limit of the language",
        "Text may come from strangers, so each of its parts has a limit.",
        "Split the file, the expression or the type into smaller ones.";
    "TG0101" E "declared twice",
        "All files of a deployment share one namespace, and a name means one thing in it.",
        "Rename one of the two.";
    "TG0102" E "unknown schema, lookup, transform, rule or table",
        "Nothing of this name is declared in the files or registered in Rust.",
        "Declare it, register it, or mend the name.";
    "TG0103" E "unknown alias",
        "The name is neither the alias of a `receive` nor a result named with `into`.",
        "Use the alias as the `receive` declares it.";
    "TG0104" E "unknown buffer",
        "`store in` and `hold … in` name a hold of the process.",
        "Declare the hold, or mend the name.";
    "TG0105" E "unknown state",
        "`state.NAME` needs a `local` or `uses` of that name in the `state` block.",
        "Declare the state, or mend the name.";
    "TG0106" E "declared in the file and registered in Rust",
        "It would not be clear which of the two runs.",
        "Remove one of them, or rename it.";
    "TG0107" E "wrong kind of name",
        "The name exists and is something else than this place needs.",
        "Use the word that fits it, for instance `route by` for a field.";
    "TG0201" E "process without `receive`",
        "A process has nothing to work on without an input.",
        "Add `receive <stream>`.";
    "TG0202" E "process without `emit` or `route`",
        "A process whose records go nowhere has no effect.",
        "Add `emit to <stream>` or a `route`.";
    "TG0203" E "step before the inputs are combined",
        "With several inputs it is not clear which one a step works on.",
        "Combine them first, by `join`, `merge`, `await` or `hold`.";
    "TG0204" E "nothing flows here",
        "The `route` before sends every record away.",
        "Add `otherwise continue` to the route, or move the statement before it.";
    "TG0205" E "join of something that is no other input",
        "A join needs two different inputs or results.",
        "Name two different aliases.";
    "TG0206" E "input never used, or used twice",
        "Each input and each `into` result has one way through the process.",
        "Combine it with the others, or remove it.";
    "TG0207" E "`mode batch` with waiting",
        "A batch ends with its input, so nothing can come later.",
        "Remove the window, await, hold or watermark, or use `mode stream`.";
    "TG0208" E "`on commit` without `emit` or correlation",
        "A completion tells about an output, and names it by its correlation field.",
        "Add the `emit`, and `correlation <field>`.";
    "TG0209" W "process emits to a stream that it receives",
        "Its output comes back as its input, possibly for ever.",
        "Emit to another stream, unless the loop is meant and ends.";
    "TG0301" E "unknown field",
        "The schema of the record has no such field.",
        "Mend the name, or add the field to the schema.";
    "TG0302" E "partition field missing in an input",
        "Records without the key of the stage have no partition.",
        "Add the field to the input, or partition by another one.";
    "TG0303" E "`time by` field is not a timestamp",
        "Event time is read from the field.",
        "Name a field of type `timestamp`.";
    "TG0304" E "key missing in one input, or of different types",
        "Records are matched by equal keys.",
        "Give both sides a key of one name and type.";
    "TG0305" E "expression of the wrong type",
        "The place needs another type, for instance a condition for `filter`.",
        "Compare or convert the value.";
    "TG0306" E "assignment does not fit the output schema",
        "The field has another type in the output schema.",
        "Convert the value, or change the schema.";
    "TG0307" E "required output field never set",
        "The output schema needs a field that neither input nor transform provides.",
        "Set the field, or make it optional.";
    "TG0308" E "route value impossible or repeated",
        "An arm that can never be taken is a mistake.",
        "Remove the arm, or mend its value.";
    "TG0309" E "table row with the wrong number of cells",
        "Each row has the columns of the head.",
        "Add or remove cells.";
    "TG0310" E "default or constraint does not fit its type",
        "A field could never hold the value.",
        "Write a value of the type, and a range that rises.";
    "TG0311" W "table without a catch-all row",
        "A record that no row matches is a rule failure.",
        "Add a last row of `*` cells.";
    "TG0401" E "window without aggregate",
        "A window has one result per key, which the aggregate makes.",
        "Add `aggregate … end`, or `aggregate using <transform>` after it.";
    "TG0402" E "window without key",
        "Windows are kept per key.",
        "Add `key by <field>`, or `partition by` to the process.";
    "TG0403" E "watermark, lateness or late data without event time",
        "On processing time nothing is ever late.",
        "Add `time by <field>`, or remove the clause.";
    "TG0404" E "`every` longer than the window, or a duration of zero",
        "Records between two windows would be in none.",
        "Make `every` at most the length of the window, and durations longer than zero.";
    "TG0405" E "`aggregate using` without window or hold",
        "There is nothing to aggregate.",
        "Put it after a `window` or a `hold`.";
    "TG0406" W "event-time window without `late data to`",
        "Records that come too late go to the dead letter stream.",
        "Add `late data to <stream>`, to the window or to `time by`.";
    "TG0501" E "`await` needs two different inputs",
        "The waiting record and its trigger come from two inputs.",
        "Name the aliases of two different receives.";
    "TG0502" E "await or hold without timeout",
        "Without it, records without a match would be kept for ever.",
        "Add `timeout <duration>` and an action.";
    "TG0503" E "hold without `keyed by`",
        "Records are held per key.",
        "Add `keyed by <field>`.";
    "TG0504" E "hold that no input feeds, or input without its hold",
        "Both sides must name each other.",
        "Add `store in` or `match from` to a receive, or declare the hold.";
    "TG0505" E "marker without its input, or the reverse",
        "`complete when marker received` needs a receive with `as marker`.",
        "Add `as marker` to the match, or the completion to the hold.";
    "TG0506" E "timeout action together with `complete on timeout`",
        "There the timeout completes the entry, which then goes downstream.",
        "Remove the action, or the `complete on timeout`.";
    "TG0508" W "hold that never completes",
        "Every entry takes the timeout action.",
        "Add a completion, unless this is meant.";
    "TG0601" E "handler that can never apply",
        "An earlier handler of the same type takes every failure.",
        "Write `retry` before the other action.";
    "TG0602" E "`retry 0`",
        "`retry N` counts all attempts, and the first one is always made.",
        "Write at least `retry 1`.";
    "TG0603" E "sample rate not above 0 and at most 1",
        "It is the share of records that is kept.",
        "Write a number such as `0.1`.";
    "TG0604" E "checkpoint below 1 second or 1 record",
        "So many snapshots would stop the stage.",
        "Write at least `1 second` or `1 records`.";
    "TG0605" E "buckets not rising",
        "Each bucket counts up to its bound.",
        "Sort the bounds, and remove repeated ones.";
    "TG0606" W "retry of a step that cannot fail transiently",
        "Expressions fail the same way each time, so a retry is skipped.",
        "Remove the retry, or name the failure of a lookup.";
    "TG0607" W "records are lost by declaration",
        "`skip`, `drop` and `sample` end records without a trace but the count.",
        "Emit or dead-letter them, unless the loss is meant.";
    "TG0701" E "stream without binding",
        "The configuration says where a stream lives.",
        "Add the stream to `streams`, or mend its name.";
    "TG0702" E "unknown key of the configuration",
        "The section has no such key.",
        "Mend the key.";
    "TG0703" E "lookup without binding",
        "The configuration says where a lookup lives.",
        "Add the lookup to `lookups`.";
    "TG0704" E "binding type not in this build",
        "This program was built without it.",
        "Use another type, or a build that has it.";
    "TG0705" E "checkpoint or state backend without binding",
        "The configuration says where snapshots and state live.",
        "Add it to `checkpoints` or `state-backends`.";
    "TG0706" E "variable without value",
        "`${VAR}` has neither a value in the environment nor a default.",
        "Set it, or write `${VAR:-default}`.";
    "TG0707" E "joined inputs with different partition counts",
        "Equal keys would be in different tasks.",
        "Give the topics the same count, or name a `partition by` that repartitions them.";
    "TG0708" E "`exactly-once` with a sink that cannot take part",
        "The sink cannot commit together with the epoch.",
        "Say `delivery: at-least-once`.";
    "TG0709" E "partition count changed since the last checkpoint",
        "Keys would be in other tasks than their state.",
        "Restore the count, or start the process under a new name.";
    "TG0710" W "statement that a stage does nothing with yet",
        "The language has it and the model runs it; the runtime of this version does not.",
        "Do not rely on it; remove it, or keep it for a later version.";
    "TG0801" E "`import` is not supported",
        "All files of a deployment share one namespace.",
        "Pass all files to one deployment.";
    "TG0802" E "phases and business dates are not supported",
        "Their order is the part of a scheduler.",
        "Use `hold … marker`, `mode batch`, or an outside scheduler.";
    "TG0803" E "`sql` blocks are not supported",
        "Flows have one expression language, CEL.",
        "Use a transform or a Rust function.";
    "TG0804" E "source is not supported",
        "A process receives from streams.",
        "Bind a stream to it, or write a Rust source.";
    "TG0805" E "branches, schedules and state machines are not supported",
        "A process is one line of steps.",
        "Write several processes, joined by streams.";
    "TG0806" E "calls to outside services are not supported",
        "Answers from outside come through lookups, which have timeouts and breakers.",
        "Write `enrich using` with a lookup of type `http`.";
    "TG0807" E "`if`, `let` and `set` are not supported",
        "Steps apply to every record.",
        "Write `c ? a : b` in CEL, or an inline `transform`.";
    "TG0808" E "`evaluate using` is not supported",
        "Rules are decision tables.",
        "Write `transform using` with a decision table.";
    "TG0809" E "options of `emit` that are not supported",
        "An `emit` writes the record to one stream.",
        "Write a second `emit`, or an inline `transform`.";
    "TG0810" E "`emit_audit_event` is not supported",
        "Audit streams are streams.",
        "Write `emit to` with the audit stream.";
    "TG0811" E "endless retries and `log_error` are not supported",
        "Failures are logged anyway, and endless retries block their key.",
        "Bind a breaker with the fallback `queue_for_retry`.";
    "TG0812" E "operator of another language",
        "Expressions are CEL.",
        "Write `&&`, `||`, `!`, `== null`, two comparisons, `has()` or `c ? a : b`.";
    "TG0813" E "older word",
        "The word has another name now.",
        "Write `when slow`, `transform failure` or `fanout broadcast`.";
    "TG0901" E "state change that needs a migration",
        "The stored state has another type than the declared one.",
        "Declare a state of a new name, or migrate the stored one.";
    "TG0902" E "state removed while it holds data",
        "The stored records would be lost.",
        "Keep the declaration until the state is empty, or drop it by hand.";
    "TG0903" E "key of the state changed",
        "Stored values would belong to other keys.",
        "Declare a state of a new name.";
};
