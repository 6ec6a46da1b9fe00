//! The parameters of a request. One that cannot be read is named, with its value and with what it may be.

use axum::extract::path::ErrorKind;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, Query, RawPathParams};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::Value;
use utoipa::IntoParams;

use crate::{ApiProblem, ProblemCode};

/// The parameters behind the `?`.
#[derive(Debug)]
pub(crate) struct QueryParameters<T>(pub(crate) T);

/// The parameters in the path.
#[derive(Debug)]
pub(crate) struct PathParameters<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + IntoParams> FromRequestParts<S> for QueryParameters<T> {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiProblem> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(found)) => Ok(Self(found)),
            Err(refused) => {
                let given = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri);
                let given = given.map_or_else(|_| Vec::new(), |Query(given)| given);
                let known = T::into_params(|| None);
                let known = serde_json::to_value(known).unwrap_or_default();
                let known = known.as_array().map_or(&[][..], Vec::as_slice);
                Err(query_problem(&refused.body_text(), &given, known))
            }
        }
    }
}

/// Says what is wrong with a query, from what the library says of it. `known` are the parameters of the route as
/// OpenAPI describes them.
fn query_problem(said: &str, given: &[(String, String)], known: &[Value]) -> ApiProblem {
    let (_, why) = said.split_once("query string: ").unwrap_or(("", said));
    let names: Vec<&str> = known
        .iter()
        .filter_map(|one| one["name"].as_str())
        .collect();
    let value_of = |name: &str| {
        let found = given.iter().find(|(given, _)| given == name);
        found.map_or("", |(_, value)| value)
    };
    let unknown = given
        .iter()
        .find(|(name, _)| !names.contains(&name.as_str()));
    if let Some((name, value)) = unknown {
        let message = match names.is_empty() {
            true => format!("there is no parameter `{name}`, and none at all"),
            false => format!(
                "there is no parameter `{name}`; those that are allowed are `{}`",
                names.join("`, `")
            ),
        };
        return problem(name, value, message);
    }
    let quoted = why.split('`').nth(1).unwrap_or_default();
    if why.contains("missing field") && names.contains(&quoted) {
        let described = described(known, quoted);
        return problem(
            quoted,
            "",
            format!("the parameter `{quoted}` is missing{described}"),
        );
    }
    if why.contains("duplicate field") && names.contains(&quoted) {
        let message = format!("the parameter `{quoted}` is given twice");
        return problem(quoted, value_of(quoted), message);
    }
    let named = why.split_once(": ").map(|(name, _)| name);
    match named.filter(|name| names.contains(name)) {
        Some(name) => {
            let value = value_of(name);
            let allowed = allowed(known, name);
            let limit = match () {
                () if why.contains("too large") => " that is smaller",
                () if why.contains("too small") => " that is larger",
                () => "",
            };
            let described = described(known, name);
            let message = format!("`{name}` is `{value}`, and must be {allowed}{limit}{described}");
            problem(name, value, message)
        }
        None => ApiProblem::new(
            ProblemCode::BadRequest,
            format!("the query is invalid: {why}"),
        ),
    }
}

fn parameter<'a>(known: &'a [Value], name: &str) -> &'a Value {
    let mut known = known.iter();
    known
        .find(|one| one["name"] == name)
        .unwrap_or(&Value::Null)
}

/// The values that a parameter takes, in words.
fn allowed(known: &[Value], name: &str) -> String {
    let schema = &parameter(known, name)["schema"];
    let is = |kind: &str| {
        let kinds = &schema["type"];
        kinds == kind
            || kinds
                .as_array()
                .is_some_and(|kinds| kinds.iter().any(|one| one == kind))
    };
    match () {
        () if is("boolean") => "`true` or `false`".to_owned(),
        () if is("integer") && schema["minimum"] == 0 => "a whole number, 0 or more,".to_owned(),
        () if is("integer") => "a whole number".to_owned(),
        () if is("number") => "a number".to_owned(),
        () => "a text of its form".to_owned(),
    }
}

/// The description of a parameter, as the end of a sentence.
fn described(known: &[Value], name: &str) -> String {
    let described = parameter(known, name)["description"].as_str();
    described.map_or_else(String::new, |text| {
        format!(" ({})", text.trim_end_matches('.'))
    })
}

fn problem(name: &str, value: &str, message: String) -> ApiProblem {
    let problem = ApiProblem::new(ProblemCode::BadRequest, message);
    problem.with("parameter", name).with("value", value)
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for PathParameters<T> {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiProblem> {
        match Path::<T>::from_request_parts(parts, state).await {
            Ok(Path(found)) => Ok(Self(found)),
            Err(refused) => {
                let names = RawPathParams::from_request_parts(parts, state).await;
                let names: Vec<String> = names.map_or_else(
                    |_| Vec::new(),
                    |names| names.iter().map(|(name, _)| name.to_owned()).collect(),
                );
                Err(path_problem(refused, &names))
            }
        }
    }
}

fn path_problem(refused: PathRejection, names: &[String]) -> ApiProblem {
    let said = refused.body_text();
    let PathRejection::FailedToDeserializePathParams(failed) = refused else {
        return ApiProblem::new(ProblemCode::Internal, said);
    };
    let named = |index: usize| names.get(index).map_or("path", String::as_str);
    let wrong = |name: &str, value: &str, expected: &str| {
        let allowed = match expected {
            "bool" => "`true` or `false`".to_owned(),
            kind if kind.starts_with(['u', 'i']) => format!("a whole number ({kind})"),
            kind => format!("a {kind}"),
        };
        let message = format!("`{name}` in the path is `{value}`, and must be {allowed}");
        problem(name, value, message)
    };
    match failed.kind() {
        ErrorKind::ParseErrorAtKey {
            key,
            value,
            expected_type,
        } => wrong(key, value, expected_type),
        ErrorKind::ParseErrorAtIndex {
            index,
            value,
            expected_type,
        } => wrong(named(*index), value, expected_type),
        ErrorKind::ParseError {
            value,
            expected_type,
        } => wrong(named(0), value, expected_type),
        ErrorKind::InvalidUtf8InPathParam { key } => {
            let message = format!("`{key}` in the path is no UTF-8 text");
            ApiProblem::new(ProblemCode::BadRequest, message).with("parameter", key.as_str())
        }
        ErrorKind::WrongNumberOfParameters { .. }
        | ErrorKind::UnsupportedType { .. }
        | ErrorKind::DeserializeError { .. }
        | ErrorKind::Message(_)
        | _ => ApiProblem::new(
            ProblemCode::BadRequest,
            format!("the path is invalid: {said}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;
    use serde::Deserialize;

    use super::*;

    /// The parameters of a route.
    #[derive(Debug, Deserialize, IntoParams)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "they are read and not used")]
    struct AskedRecords {
        /// At most so many.
        max: Option<u32>,
        /// Where to begin.
        from: String,
        /// All of them.
        all: Option<bool>,
        /// How far from the start.
        shift: Option<i32>,
    }

    async fn asked(query: &str) -> String {
        let request = Request::get(format!("/x?{query}")).body(()).unwrap();
        let (mut parts, ()) = request.into_parts();
        let refused = QueryParameters::<AskedRecords>::from_request_parts(&mut parts, &()).await;
        refused.unwrap_err().message().to_owned()
    }

    #[tokio::test]
    async fn a_query_parameter_is_named_with_its_value_and_what_it_may_be() {
        for (query, expect) in [
            (
                "from=a&max=x",
                "`max` is `x`, and must be a whole number, 0 or more, (At most so many)",
            ),
            (
                "from=a&max=99999999999",
                "`max` is `99999999999`, and must be a whole number, 0 or more, that is smaller (At most so many)",
            ),
            (
                "from=a&shift=q",
                "`shift` is `q`, and must be a whole number (How far from the start)",
            ),
            (
                "from=a&all=maybe",
                "`all` is `maybe`, and must be `true` or `false` (All of them)",
            ),
            ("max=1", "the parameter `from` is missing (Where to begin)"),
            (
                "from=a&mx=1",
                "there is no parameter `mx`; those that are allowed are `max`, `from`, `all`, `shift`",
            ),
            ("from=a&from=b", "the parameter `from` is given twice"),
        ] {
            assert_eq!(asked(query).await, expect, "{query}");
        }
    }
}
