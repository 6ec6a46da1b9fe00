//! The table as a JSON Schema, for editors.

use serde_json::{Map, Value as Json, json};

use crate::keys::{DefaultValue, Key, KeyKind, ROOT, Unit, relaxed};

/// The JSON Schema (2020-12) of the file.
///
/// It knows the documented names and their twins with another unit. The loader itself takes more:
/// camel and snake case, and any case in words.
///
/// ```
/// let schema = tidegate_config::schema();
/// assert_eq!(schema["properties"]["shutdown-timeout"]["default"], "30s");
/// assert_eq!(schema["additionalProperties"], false);
/// ```
#[must_use]
pub fn schema() -> Json {
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tidegate configuration",
    });
    if let (Some(schema), Json::Object(body)) = (schema.as_object_mut(), section(ROOT)) {
        schema.extend(body);
    }
    schema
}

fn section(keys: &'static [Key]) -> Json {
    let mut properties = Map::new();
    let mut required: Vec<Json> = Vec::new();
    let mut one_of: Vec<Json> = Vec::new();
    for key in keys {
        let mut names = Vec::new();
        for (name, unit) in key.names() {
            names.push(json!({ "required": [name.clone()] }));
            let mut schema = property(key, unit);
            if let Some(other) = schema.as_object_mut().filter(|_| name != key.name) {
                let same = format!("The same as `{}`.", key.name);
                other.insert("description".to_owned(), same.into());
                other.remove("default");
            }
            properties.insert(name, schema);
        }
        match (key.default, names.len()) {
            (DefaultValue::Required, 1) => required.push(key.name.into()),
            (DefaultValue::Required, _) => one_of.push(json!({ "oneOf": names })),
            _ => {}
        }
    }
    let mut schema = json!({
        "type": ["object", "null"],
        "properties": properties,
        "additionalProperties": false,
    });
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    if !one_of.is_empty() {
        schema["allOf"] = one_of.into();
    }
    schema
}

fn property(key: &'static Key, unit: Unit) -> Json {
    let mut schema = of_kind(&key.kind, unit);
    let Some(object) = schema.as_object_mut() else {
        return schema;
    };
    object.insert("description".to_owned(), key.doc.into());
    if key.unused.is_some() {
        object.insert("deprecated".to_owned(), true.into());
    }
    if key.accepts_none {
        let own = Json::Object(object.clone());
        *object = Map::new();
        object.insert("description".to_owned(), key.doc.into());
        object.insert("anyOf".to_owned(), json!([own, { "const": "none" }]));
    }
    if let Some(default) = default_of(key, unit) {
        object.insert("default".to_owned(), default);
    }
    schema
}

/// The default of a key as JSON, where it is a single value.
fn default_of(key: &Key, unit: Unit) -> Option<Json> {
    let DefaultValue::Value(text) = key.default else {
        return None;
    };
    if text == "[]" {
        return Some(json!([]));
    }
    let is_number = matches!(
        key.kind,
        KeyKind::Integer { .. } | KeyKind::Float { .. } | KeyKind::Flag
    ) || unit != Unit::InValue;
    if is_number {
        return serde_json::from_str(text).ok();
    }
    Some(text.into())
}

/// The same schema, or a text with a variable in it.
fn or_variable(schema: Json) -> Json {
    json!({ "anyOf": [schema, { "type": "string", "pattern": "\\$\\{" }] })
}

fn of_kind(kind: &'static KeyKind, unit: Unit) -> Json {
    match kind {
        KeyKind::Flag => or_variable(json!({ "type": "boolean" })),
        KeyKind::Integer { min, max } => {
            or_variable(json!({ "type": "integer", "minimum": min, "maximum": max }))
        }
        KeyKind::Float { min, max } => {
            or_variable(json!({ "type": "number", "minimum": min, "maximum": max }))
        }
        KeyKind::Text => json!({ "type": ["string", "number"] }),
        KeyKind::Property => json!({ "type": ["string", "number", "boolean"] }),
        KeyKind::Code => json!({ "type": "string", "minLength": 1 }),
        KeyKind::Address => json!({ "type": "string", "pattern": ":[0-9]+$|\\$\\{" }),
        KeyKind::Secret => json!({ "type": ["string", "number", "null"], "writeOnly": true }),
        KeyKind::Json => json!({}),
        KeyKind::Duration { min_ms } if unit == Unit::Milliseconds => {
            or_variable(json!({ "type": "integer", "minimum": min_ms }))
        }
        KeyKind::Duration { min_ms } => json!({ "anyOf": [
            { "type": "integer", "minimum": min_ms },
            { "type": "string", "pattern": "^([0-9.]+ *[a-z]+ *)+$|\\$\\{" },
        ]}),
        KeyKind::Size { min } if unit == Unit::InValue => json!({ "anyOf": [
            { "type": "integer", "minimum": min },
            { "type": "string", "pattern": "^[0-9.]+ *[A-Za-z]+$|\\$\\{" },
        ]}),
        KeyKind::Size { min } => or_variable(json!({ "type": "integer", "minimum": min })),
        KeyKind::Choice(words) => choice(words),
        KeyKind::Url(schemes) => {
            json!({ "type": "string", "pattern": format!("^({}):|\\$\\{{", schemes.join("|")) })
        }
        KeyKind::List(each) if matches!(each, KeyKind::Section(_)) => {
            json!({ "type": "array", "items": of_kind(each, unit) })
        }
        KeyKind::List(each) => {
            json!({ "type": ["array", "string"], "items": of_kind(each, unit) })
        }
        KeyKind::Section(keys) => section(keys),
        KeyKind::Map { each, flat } => map(each, *flat),
    }
}

fn choice(words: &[&str]) -> Json {
    let mut spellings: Vec<String> = Vec::new();
    for word in words {
        let kebab = word.to_ascii_lowercase().replace('_', "-");
        for spelling in [
            (*word).to_owned(),
            word.to_ascii_lowercase(),
            kebab,
            relaxed(word),
        ] {
            if !spellings.contains(&spelling) {
                spellings.push(spelling);
            }
        }
    }
    or_variable(json!({ "enum": spellings }))
}

fn map(each: &'static KeyKind, flat: Option<&'static str>) -> Json {
    let entry = of_kind(each, Unit::InValue);
    let direct = match (flat, each) {
        (Some(_), KeyKind::Section(keys)) => section(keys)["properties"].clone(),
        _ => json!({}),
    };
    json!({
        "type": ["object", "null"],
        "properties": direct,
        "additionalProperties": entry,
    })
}
