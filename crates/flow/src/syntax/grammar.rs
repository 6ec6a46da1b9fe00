//! The grammar as data.
//!
//! It is written as the reference shows it, with marks that only the parser and the printer read:
//!
//! | mark | means |
//! |---|---|
//! | `x:label` | the tree has a node of this label for it |
//! | `>x`, `<x` | the printer begins a line here, one step further in or at the indent of the rule |
//! | `@2 x` | an optional part begins only where so many tokens fit |
//! | `@word x` | an optional part begins only where a look ahead of this name allows it |
//! | `{+ }` `{! }` | at least once; each clause at most once |
//! | `{* }` `{% }` | recovers after each part; and everything else up to `end` is a mistake |
//! | `[- ]` | not published: understood only to be refused with a better word |
//! | `x~CODE` | the code where it is missing |

use std::sync::LazyLock;

use super::notation::{GrammarItem, GrammarRule, read};

/// Words that are never names, unless in backquotes.
pub const RESERVED: [&str; 16] = [
    "process",
    "end",
    "schema",
    "lookup",
    "transform",
    "decision_table",
    "receive",
    "emit",
    "route",
    "on",
    "to",
    "from",
    "using",
    "by",
    "when",
    "otherwise",
];

const TEXT: &str = r#"
file        = {% <( process:process | schema:schema | lookup:lookup | transform:transform | decision:decision ) } ;

process     = "process" NAME:name {% >( setting:setting | receive:receive | step:step | output:output | block:block ) }
              <"end" ;

setting     = "parallelism" [ "hint":hint ] INT:count
            | "partition" "by" fields:fields
            | "time" "by" path:path {! "watermark" "delay" duration:delay | "late" "data" "to" NAME:late
                               | "allowed" "lateness" duration:lateness }
            | "mode" ( "stream" | "batch" | "micro_batch" duration:every ):mode ;

receive     = "receive" ( "from" NAME:stream | NAME:alias [ "from" NAME:stream ] ) {! receive_opt } ;
receive_opt = "schema" NAME:schema | "project" [ "except":except ] fields:project | "filter" expr:filter
            | "store" "in" NAME:store | "match" "from" NAME:match "on" fields:on [ "as" "marker":marker ] ;

step        = "filter" expr:filter
            | "validate_input" {+ >check:check }
            | "enrich" "using" NAME:lookup "on" fields:on [ "select" fields:select ]
            | "transform" "using" NAME:using [ >on_success:on_success ] [ >on_failure:on_failure ]
            | inline
            | "deduplicate" "by" fields:by [ @2 "window" duration:window ] [ "on_duplicate" leave:leave "end" ]
            | "window" ( "tumbling" duration:size | "sliding" duration:size "every" duration:every | "session" "gap" duration:size ):shape
              {! >"key" "by" fields:key | >"allowed" "lateness" duration:lateness | >"late" "data" "to" NAME:late
              | @2 >( "aggregate" {+ >agg:agg } <"end" ):aggregate }
            | "aggregate" "using" NAME:using
            | "join" NAME:left "with" NAME:right "on" fields:on "within" duration:within [ "type" join_type:type ] [ "into" NAME:into ]
            | "merge" NAME:input "," NAME:input { "," NAME:input } [ "into" NAME:into ]
            | await | hold | route ;

inline      = "transform" assign:assign { @assignment >assign:assign } ;
assign      = target:target "=" expr:value ;
target      = "state" "." NAME:state [ "[" expr:key "]" ] | path:path ;
check       = "require" expr:condition "else" STRING:message ;
on_success  = "on_success" { >( "emit" "to" NAME:stream [ "schema" NAME:schema ] ):emit | >inline:inline } <"end" ;
on_failure  = "on_failure" { >inline:inline } >( leave:leave | "continue":continue ) <"end" ;
leave       = "emit" "to" NAME:stream | "dead_letter" NAME:stream | "skip" ;
agg         = ( "count" "(" ")" | agg_fn:function "(" expr:of ")" ) "as" NAME:name ;
agg_fn      = "sum" | "avg" | "min" | "max" | "first" | "last" | "collect" ;
join_type   = "inner" | "left" | "right" | "outer" ;

await       = "await" NAME:left "until" NAME:right "arrives" "matching" "on" fields:on >"timeout"~TG0502 duration:timeout leave:leave [ "into" NAME:into ] ;
hold        = "hold" NAME:name [ "in" NAME:buffer ] "keyed"~TG0503 "by" fields:keyed
              ( >"complete" "on" "timeout":on_timeout "timeout"~TG0502 duration:timeout [- ( "dead_letter" NAME | "skip" ):extra ]
              | [ >complete:complete ] >"timeout"~TG0502 duration:timeout leave:leave ) [ "into" NAME:into ] ;
complete    = "complete" ( "when" ( "count" ">=" INT:count | "marker":marker "received" | "using" NAME:rule ) | "using" NAME:rule ) ;

route       = "route" ( "using" NAME:using | "by" path:by ) { >( literal:value "to" NAME:stream ):arm } [ >otherwise:otherwise ]
            | "route" >( "when" expr:condition "to" NAME:stream ):arm { @not_slow >( "when" expr:condition "to" NAME:stream ):arm } [ >otherwise:otherwise ] ;
otherwise   = "otherwise" ( "to" NAME:stream | "continue":continue | "skip":skip ) ;

output      = "emit" "to" NAME:stream {! "schema" NAME:schema | "fanout" ( "broadcast" | "round_robin" ):fanout | "key" "by" fields:key }
            | "on" "commit" [ "failure":failure ] "emit" "completion" "to" NAME:stream "correlation"~TG0208 path:correlation
              [ "include" fields:include ] [ "schema" NAME:schema ] ;

block       = "on" "error" {*+ @handler >handler:handler } [ @own_end <"end" ]
            | "state" {*+ >state_decl:decl } [ @own_end <"end" ]
            | "metrics" {*+ >metric:metric } [ @own_end <"end" ]
            | "checkpoint" "every" trigger:trigger [ "or" trigger:trigger ] [ "to" NAME:to ]
            | "when" "slow" "strategy" ( "block" | "drop" | "sample" NUM:rate ):strategy [ "alert" "after" duration:alert ] ;

handler     = ( "transform" | "lookup" | "rule" | "correlation" ):failure "failure" ( leave:leave | retry:retry ) ;
retry       = "retry" INT:attempts [ "times" ] {! "delay" duration:delay | "backoff" ( "exponential" | "linear" | "fixed" ):backoff
                                      | "max_delay" duration:max_delay } [ "then" leave:then ] ;
trigger     = duration:every | INT:records "records" ;

state_decl  = "uses" NAME:uses
            | "local" NAME:name "keyed" "by" fields:keyed "type" ( "counter" | "gauge" | "map" | "list" ):type
              {! ttl:ttl | "cleanup" ( "on_checkpoint" | "on_access" | "background" ):cleanup }
            | "buffer" NAME:name "keyed" "by" fields:keyed "type" ( "fifo" | "lifo" | "priority" "by" path:by ):type ;
ttl         = "ttl" [ ( "sliding" | "absolute" ):since ] duration:after [ "by" ( "event_time" | "processing_time" ):clock ] ;

metric      = "counter" NAME:name [ @not_slow "when" expr:expr ]
            | "gauge" NAME:name [ "of" expr:expr ]
            | "rate" NAME:name [ @not_slow "when" expr:expr ] [ @2 "window" duration:window ]
            | "histogram" NAME:name [ "of" expr:expr ] [ "buckets" NUM:bucket { "," NUM:bucket } ] ;

schema      = "schema" NAME:name [ @2 "version" STRING:version ] {%! >field:field | >"key" fields:key | >"time" path:time } <"end" ;
lookup      = "lookup" NAME:name >"key" fields:key {% >field:field } <"end" ;
field       = FIELD:field ":" type:type {! @modifier modifier:modifier } ;
type        = "string" | "integer" | "double" | "boolean" | "date" | "timestamp" | "uuid" | "bytes" | "json"
            | "decimal" [ "(" INT:precision "," INT:scale ")" ] | "list" "<" type:of ">" | "map" "<" type:of ">"
            | "object" {! >field:field } <"end" ;
modifier    = "optional" | "default" literal:default | "range" number:from ".." number:to | "length" INT:from ".." INT:to
            | "pattern" STRING:pattern | "values" "(" literal:value { "," literal:value } ")" ;

transform   = "transform" NAME:name [ >"input" NAME:input ] [ >"output" NAME:output ] { >check:check }
              ( >( "apply" {+ @assignment >assign:assign } <"end" ):apply | >"each" expr:each ) [ >( ( "keep" | "drop" ):way fields:fields ):trim ] <"end" ;

decision    = "decision_table" NAME:name [ >"input" NAME:input ] [ >"hit_policy" ( "first_match" | "collect_all" ):policy ]
              >head:head {+ >row:row } <"end" ;
head        = "|" expr:column { "|" expr:column } "=>" NAME:result { @2 "|" NAME:result } "|" ;
row         = "|" cell:cell { "|" cell:cell } "=>" expr:result { @2 "|" expr:result } "|" ;
cell        = "*":any | number:from ".." number:to | "in" expr:in | [ ( "==" | "!=" | "<" | "<=" | ">" | ">=" ):operator ] expr:expr ;

fields      = path:path { "," path:path } ;
path        = NAME { "." NAME } ;
literal     = STRING | number | "true" | "false" ;
number      = [ "-" ] NUM ;
duration    = INT unit~TG0003 | SHORT_DURATION ;
unit        = "millisecond" | "milliseconds" | "second" | "seconds" | "minute" | "minutes"
            | "hour" | "hours" | "day" | "days" | "week" | "weeks" ;
"#;

static RULES: LazyLock<Vec<GrammarRule>> = LazyLock::new(|| read(TEXT));

/// The rules, the first of which is a whole file.
pub(super) fn rules() -> &'static [GrammarRule] {
    &RULES
}

/// The grammar without the marks, as the reference shows it: one rule per line.
///
/// ```
/// assert!(tidegate_flow::syntax::published().contains("check = \"require\" expr \"else\" STRING ;\n"));
/// ```
#[must_use]
pub fn published() -> String {
    let lines = rules()
        .iter()
        .map(|rule| format!("{} = {} ;\n", rule.name, rule.item));
    lines.collect()
}

/// Every word that the grammar gives a meaning, in alphabetical order.
#[must_use]
pub fn words() -> Vec<&'static str> {
    let mut words: Vec<&'static str> = Vec::new();
    for rule in rules() {
        rule.item.each(&mut |item| {
            if let GrammarItem::Word(word) = item
                && word.starts_with(|c: char| c.is_ascii_lowercase())
            {
                words.push(word);
            }
        });
    }
    words.sort_unstable();
    words.dedup();
    words
}
