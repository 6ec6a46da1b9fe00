//! Expression → value, failure or findings.

use tidegate_flow::Span;
use tidegate_flow::expression::{ExpressionScope, parse};

use crate::{RECORD, assert_rows, checked, outcome, scope};

#[test]
fn expressions_have_their_values() {
    let scope = scope();
    assert_rows(
        &[
            // Operators.
            ("1 + 2 * 3 - 4", "3"),
            ("(1 + 2) * 3", "9"),
            ("7 / 2 + 7 % 2", "4"),
            ("-7 / 2", "-3"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("0x1F + 1", "32"),
            ("7u - 3u", "4"),
            ("1.5e3", "1500.0"),
            (".5 + 0.25", "0.75"),
            ("- - 5", "5"),
            ("!!b", "true"),
            ("1 < 2 && 2.5 > 2 || false", "true"),
            ("1 == 1.0 && 2u == 2", "true"),
            ("9007199254740993 == 9007199254740992.0", "false"),
            ("b ? 'yes' : 'no'", "\"yes\""),
            ("i > 5 ? i > 6 ? 'a' : 'b' : 'c'", "\"a\""),
            ("'a' + \"b\" + r'\\n'", "\"ab\\\\n\""),
            ("'\\x41\\u00e4\\U0001F600\\101\\t'", "\"Aä😀A\\t\""),
            ("'''two\nlines'''", "\"two\\nlines\""),
            ("b'\\xff\\x00'", "\"/wA=\""),
            ("[1, 2,] + [3]", "[1,2,3]"),
            ("{'a': 1, 2: true,}", "{\"a\":1,\"2\":true}"),
            ("2 in [1, 2] && 'a' in {'a': 1} && !('x' in tags)", "true"),
            ("nums[1] + rates['EUR'] + nums[1u]", "5"),
            ("// a comment\n 1 /* and one */ + 1", "2"),
            // Fields, metadata, state, functions.
            ("s", "\"Store 7\""),
            ("`to` + record.to", "\"reservedreserved\""),
            ("absent == null && n == null", "true"),
            ("escaped", "\"line\\nbreak\""),
            (
                "address.city + address.geo.lat.string()",
                "TG0012 address.geo.lat.string()",
            ),
            ("address.city + string(address.geo.lat)", "\"Köln50.9\""),
            ("address.geo.lon", "null"),
            (
                "has(address.geo.lat) && !has(address.geo.lon) && !has(record.absent)",
                "true",
            ),
            (
                "_key + _topic + string(_partition) + string(_offset)",
                "\"k1orders341\"",
            ),
            ("_id", "\"019a8f3e-5c00-7abc-8def-0123456789ab\""),
            ("_headers['source'] + _headers.source", "\"shopshop\""),
            ("_timestamp == timestamp('2026-01-05T10:30:00Z')", "true"),
            ("state.seen + 1", "4"),
            ("state.last_of['last']", "\"r1\""),
            ("twice(i)", "14"),
            ("record.i + size(record.tags)", "9"),
            ("size(record)", "16"),
            // Macros.
            (
                "nums.all(x, x > 0) && nums.exists(x, x == 3) && nums.exists_one(x, x > 2)",
                "true",
            ),
            ("nums.map(x, x * 2)", "[2,4,6]"),
            ("nums.map(x, x > 1, x * 2)", "[4,6]"),
            ("nums.filter(x, x % 2 == 1)", "[1,3]"),
            ("rates.filter(k, rates[k] > 1)", "[\"USD\"]"),
            ("nums.map(x, nums.filter(y, y > x).size())", "[2,1,0]"),
            ("lines.map(l, l.qty).all(q, q > 1)", "true"),
            ("[0].exists(s, .s == 'Store 7')", "true"),
            ("[1, 2].exists(s, s == 2) ? s : ''", "\"Store 7\""),
            ("nums.all(x, x / 0 == 1) || true", "true"),
            ("[0, 1].exists(x, 1 / x == 1)", "true"),
            // Strings.
            ("size('Köln') + size(b'ab') + 'abc'.size()", "9"),
            (
                "s.startsWith('Store') && s.endsWith('7') && s.contains('re 7')",
                "true",
            ),
            ("s.matches('^Store [0-9]+$') && matches(s, 'tor')", "true"),
            ("s.matches('^' + 'Store')", "true"),
            ("' aB '.trim().lowerAscii() + 'aB'.upperAscii()", "\"abAB\""),
            ("'a,b,c'.split(',').join('-') + ['x'].join()", "\"a-b-cx\""),
            (
                "'banana'.replace('an', 'o') + 'Köln'.substring(1, 3) + 'abc'.substring(1)",
                "\"booaölbc\"",
            ),
            ("'Köln'.indexOf('n') + 'x'.indexOf('y')", "2"),
            // Conversions.
            (
                "int('42') + int(2.9) + int(3u) + int(decimal('4.99'))",
                "51",
            ),
            ("[double('1.5'), double(2)]", "[1.5,2.0]"),
            ("uint(5) + uint('6')", "11"),
            (
                "string(1.5) + string(true) + string(7u) + string(b'x')",
                "\"1.5true7x\"",
            ),
            ("bool('true') && !bool('false')", "true"),
            (
                "type(i) == int && type(money) == decimal && type(null) == null_type",
                "true",
            ),
            ("type(1.0) == type(d)", "true"),
            // Times.
            ("ts", "\"2026-01-05T10:30:00.25Z\""),
            ("ms == timestamp('2026-01-05T10:30:00Z')", "true"),
            ("ts.getFullYear() * 100 + ts.getMonth()", "202600"),
            (
                "[ts.getDate(), ts.getDayOfMonth(), ts.getDayOfWeek(), ts.getDayOfYear()]",
                "[5,4,1,4]",
            ),
            (
                "[ts.getHours(), ts.getMinutes(), ts.getSeconds(), ts.getMilliseconds()]",
                "[10,30,0,250]",
            ),
            ("ts.getHours('+02:00') + ts.getHours('-11:00')", "35"),
            (
                "ts + duration('1h30m') - timestamp('2026-01-05T12:00:00Z')",
                "\"0.25s\"",
            ),
            (
                "duration('90m').getHours() + duration('1.5s').getMilliseconds()",
                "501",
            ),
            ("duration('1h') + duration('-250ms')", "\"3599.75s\""),
            (
                "int(timestamp('1970-01-01T00:01:00Z')) + int(timestamp(5))",
                "65",
            ),
            ("ts < now() && now() - ts > duration('24h')", "true"),
            (
                "timestamp('2026-01-05T12:00:00+02:00')",
                "\"2026-01-05T10:00:00Z\"",
            ),
            // Money.
            ("money", "12.50"),
            ("money + text_money", "12.60"),
            ("money * 2 - decimal('0.5')", "24.50"),
            ("money / 3", "4.1666666666666666666666666667"),
            ("round(money / 3, 2)", "4.17"),
            (
                "[round(decimal('0.125'), 2), round(decimal('0.135'), 2), round(decimal('7'), 2)]",
                "[0.12,0.14,7.00]",
            ),
            (
                "money > 12 && money < decimal('12.501') && money == decimal('12.5')",
                "true",
            ),
            ("-money", "-12.50"),
            ("money % 5", "2.50"),
            ("decimal('1e3') + decimal(5u)", "1005"),
        ],
        |text| outcome(text, &scope, RECORD),
    );
}

#[test]
fn failures_have_their_codes() {
    let scope = scope();
    let record = RECORD.replacen('{', "{\"wrong\":\"x\",", 1);
    assert_rows(&[
        ("9223372036854775807 + i", "expr.overflow"),
        ("-9223372036854775807 - i", "expr.overflow"),
        ("i * 9223372036854775807", "expr.overflow"),
        ("3u - 4u", "expr.overflow"),
        ("-(-9223372036854775807 - 1)", "expr.overflow"),
        ("i / (i - 7)", "expr.division-by-zero"),
        ("i % (i - 7)", "expr.division-by-zero"),
        ("money / (i - 7)", "expr.division-by-zero"),
        ("decimal('79228162514264337593543950335') + 1", "expr.overflow"),
        ("decimal('9999999999999999999999999999') + decimal('0.1')", "expr.overflow"),
        ("decimal('1.00000000000001') * decimal('1.000000000000001')", "expr.overflow"),
        ("nums[7]", "expr.index"),
        ("nums[-1]", "expr.index"),
        ("rates['GBP']", "expr.missing"),
        ("rates.GBP", "expr.missing"),
        ("int('x')", "expr.convert"),
        ("int(1e30)", "expr.convert"),
        ("uint(-1)", "expr.convert"),
        ("bool('yes')", "expr.convert"),
        ("decimal(s)", "expr.convert"),
        ("ts.getHours('Europe/Berlin')", "expr.convert"),
        ("timestamp('2026-13-01T00:00:00Z' + '')", "expr.convert"),
        ("ts + duration('2540400h')  + duration('2540400h') + duration('2540400h') + duration('2540400h')
          + duration('2540400h') + duration('2540400h') + duration('2540400h') + duration('2540400h')
          + duration('2540400h') + duration('2540400h') + duration('2540400h') + duration('2540400h')
          + duration('2540400h') + duration('2540400h') + duration('2540400h') + duration('2540400h')
          + duration('2540400h') + duration('2540400h') + duration('2540400h') + duration('2540400h')
          + duration('2540400h') + duration('2540400h') + duration('2540400h') + duration('2540400h')
          + duration('2540400h') + duration('2540400h') + duration('2540400h') + duration('2540400h')", "expr.overflow"),
        ("s.matches('(' + s)", "expr.pattern"),
        ("s.substring(9)", "expr.index"),
        ("wrong", "schema.invalid"),
        ("{s: 1, 'Store 7': 2}", "expr.type"),
        ("n + 'x'", "expr.type"),
        ("absent.startsWith('x')", "expr.type"),
        ("dyn(money) == dyn(d)", "expr.type"),
        ("dyn(money) + dyn(d)", "expr.type"),
        ("b && 1 / 0 == 1", "expr.division-by-zero"),
        ("!b && 1 / 0 == 1", "false"),
        ("1 / 0 == 1 && !b", "false"),
        ("1 / 0 == 1 || b", "true"),
        ("1 / 0 == 1 || !b", "expr.division-by-zero"),
        ("1.0 / 0.0", "JSON has no number inf"),
    ], |text| outcome(text, &scope, &record));
}

#[test]
fn findings_have_their_code_and_their_place() {
    let scope = scope();
    assert_rows(
        &[
            // Syntax.
            ("1 +", "TG0012 +"),
            ("", "TG0012 "),
            ("(1", "TG0012 1"),
            ("1 2", "TG0012 2"),
            ("a == 'x", "TG0012 'x"),
            ("i = 1", "TG0012 ="),
            ("'\\q'", "TG0012 \\q"),
            ("1 + § 2", "TG0012 §"),
            ("9223372036854775808", "TG0012 9223372036854775808"),
            ("s.", "TG0012 s."),
            ("has(s)", "TG0012 has(s)"),
            ("package + 1", "TG0012 package"),
            ("T{a: 1}", "TG0012 {"),
            ("nums.map(1, 2)", "TG0012 1"),
            // The older language.
            ("(b and b)", "TG0812 and"),
            ("b or b", "TG0812 or"),
            ("not b", "TG0812 not"),
            ("n is null", "TG0812 is"),
            ("i between 1", "TG0812 between"),
            ("n ?? s", "TG0812 ??"),
            ("address?.city", "TG0812 ?."),
            ("${s}", "TG0812 ${"),
            // Names.
            ("mony > 1", "TG0301 mony"),
            ("address.ciy == ''", "TG0301 address.ciy"),
            ("lines.all(l, l.quantity > 0)", "TG0301 l.quantity"),
            ("_kee", "TG0301 _kee"),
            ("_route == 'x'", "TG0301 _route"),
            ("state.sen", "TG0105 state.sen"),
            ("state", "TG0105 state"),
            ("s.startWith('x')", "TG0012 s.startWith('x')"),
            ("lookup(s)", "TG0012 lookup(s)"),
            // Types.
            ("money > 0.1", "TG0305 money > 0.1"),
            ("i == 1 && money + d == money", "TG0305 money + d"),
            ("decimal(0.1)", "TG0305 decimal(0.1)"),
            ("decimal('a')", "TG0012 decimal('a')"),
            ("timestamp('soon')", "TG0012 timestamp('soon')"),
            ("s.matches('(')", "TG0012 s.matches('(')"),
            ("i + d", "TG0305 i + d"),
            ("s + i", "TG0305 s + i"),
            ("s == 1", "TG0305 s == 1"),
            ("i && b", "TG0305 i"),
            ("b || s", "TG0305 s"),
            ("!i", "TG0305 i"),
            ("i ? 1 : 2", "TG0305 i"),
            ("b ? i : d", "TG0305 b ? i : d"),
            ("b ? money : 2.5", "TG0305 b ? money : 2.5"),
            ("-s", "TG0305 -s"),
            ("d % d", "TG0305 d % d"),
            ("i.x", "TG0305 i.x"),
            ("i[0]", "TG0305 i[0]"),
            ("nums['x']", "TG0305 'x'"),
            ("s in i", "TG0305 s in i"),
            ("s in nums", "TG0305 s in nums"),
            ("i.map(x, x)", "TG0305 i"),
            ("size(i)", "TG0305 size(i)"),
            ("twice(s)", "TG0305 twice(s)"),
            ("ts < i", "TG0305 ts < i"),
            ("ts + ts", "TG0305 ts + ts"),
            (
                "mony > 1 && s == 1 && state.x > 1",
                "TG0301 mony; TG0305 s == 1; TG0105 state.x",
            ),
        ],
        |text| outcome(text, &scope, RECORD),
    );
}

#[test]
fn a_wrong_name_gets_the_nearest_right_one() {
    let scope = scope();
    assert_rows(
        &[
            ("mony", "did you mean `money`?"),
            ("state.sen", "did you mean `seen`?"),
            ("address.ciy", "did you mean `city`?"),
            ("s.startWith('x')", "did you mean `startsWith`?"),
            ("_offst", "did you mean `_offset`?"),
            ("lookup(s)", "write the step `enrich using NAME on …`"),
            (
                "money > 0.1",
                "a double is not exact; write the number as `decimal(\"0.10\")`",
            ),
            ("b and b", "write `&&`"),
        ],
        |text| {
            let findings = checked(text, &scope).err().unwrap_or_default();
            findings
                .into_iter()
                .find_map(|found| found.help)
                .unwrap_or_default()
        },
    );
}

#[test]
fn without_a_schema_types_are_those_of_the_record() {
    let scope = ExpressionScope::dynamic();
    let record = r#"{"amount":10,"discount":0.5,"price":12.50,"ts":"2026-03-05T10:00:00Z","flag":true,
        "state":"open","big":18446744073709551615,"deep":{"a":[{"b":7}]}}"#;
    assert_rows(
        &[
            ("amount - discount", "9.5"),
            ("amount > 5.5 && amount + 1 == 11", "true"),
            ("decimal(price) + 1", "13.50"),
            ("ts.getMonth()", "2"),
            ("state == 'open'", "true"),
            ("big", "18446744073709551615"),
            ("deep.a[0].b", "7"),
            ("nothing", "expr.missing"),
            ("deep.x", "expr.missing"),
            ("flag.x", "expr.type"),
            ("has(record.nothing) || has(deep.a)", "true"),
            ("flag + 1", "expr.type"),
            ("amount && true", "expr.type"),
            ("amount > 'x'", "expr.type"),
            ("amount == 'x'", "false"),
            ("type(flag) == bool", "true"),
        ],
        |text| outcome(text, &scope, record),
    );
}

#[test]
fn a_budget_ends_nested_macros_and_values_that_grow() {
    let scope = ExpressionScope::dynamic();
    let list = format!("[{}]", vec!["1"; 100].join(","));
    let nested = format!("{list}.all(a, {list}.all(b, {list}.all(c, a + b + c > 0)))");
    let doubled = |step: &str| format!("['{}']{}", "x".repeat(64), step.repeat(60));
    for text in [
        nested.clone(),
        doubled(".map(x, x + x)"),
        doubled(".map(x, [x, x])"),
        format!("true || {nested} || 1 == 1").replacen("true || ", "false || ", 1),
    ] {
        assert_eq!(outcome(&text, &scope, "{}"), "expr.budget", "{text:.60}");
    }
    let fits = format!("{list}.all(a, {list}.all(b, a + b > 0))");
    assert_eq!(outcome(&fits, &scope, "{}"), "true");
}

#[test]
fn limits_have_a_finding_and_take_no_stack() {
    let deep = |open: &str, close: &str, times: usize| {
        format!("{}1{}", open.repeat(times), close.repeat(times))
    };
    let parses = |text: &str| {
        let found = parse(text, Span::new(0, 0, u32::MAX));
        found.map(|_| ()).map_err(|found| found[0].message.clone())
    };
    assert!(parses(&deep("(", ")", 60)).is_ok());
    for text in [
        deep("(", ")", 5_000),
        deep("[", "]", 5_000),
        deep("f(", ")", 5_000),
        "true ? 1 : ".repeat(1_000) + "1",
    ] {
        let message = parses(&text).unwrap_err();
        assert!(message.contains("more than 64 deep"), "{message}");
    }
    for text in [
        "1 + ".repeat(3_000) + "1",
        "a".to_owned() + &".a".repeat(5_000),
        "-".repeat(9_000) + "a",
        "!".repeat(9_000) + "a",
    ] {
        let message = parses(&text).unwrap_err();
        assert!(message.contains("more than 250 operations"), "{message}");
    }
    let wide = vec!["a == 1"; 1_500].join(" || ");
    assert!(parses(&wide).is_ok());
    let message = parses(&"1".repeat(16 * 1024 + 1)).unwrap_err();
    assert!(message.contains("more than 16384 bytes"), "{message}");
}

#[test]
fn the_type_of_an_expression_is_known() {
    let scope = scope();
    assert_rows(
        &[
            ("money * 2", "decimal"),
            ("i + 1", "integer"),
            ("nums.map(x, string(x))", "list<string>"),
            ("ts - ts", "duration"),
            ("b ? s : null", "string"),
            ("b ? s : 1", "dynamic"),
            ("b ? money : 1", "dynamic"),
            ("b ? i : dyn(d)", "dynamic"),
            ("address.geo", "object"),
            ("rates['EUR'] > 1", "boolean"),
            ("{'a': 1}", "map<integer>"),
        ],
        |text| checked(text, &scope).unwrap().kind().to_string(),
    );
}

#[test]
fn a_declared_field_that_an_element_lacks_is_null() {
    assert_rows(
        &[
            ("lines[0].note == null", "true"),
            ("lines[0].note", "null"),
            ("lines.map(l, l.note)", "[null,null]"),
            ("lines.exists(l, l.note == \"x\")", "false"),
            ("lines.filter(l, l.note == null).size()", "2"),
            ("lines.all(l, has(l.note))", "false"),
            ("lines[0].note.startsWith(\"x\")", "expr.type"),
            ("lines[0].nothing", "TG0301 lines[0].nothing"),
        ],
        |text| outcome(text, &scope(), RECORD),
    );
}
