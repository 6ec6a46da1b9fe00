//! Codes and messages of broken connections.

use std::error::Error;
use std::io;

use tidegate_core::{Code, error_chain};

use super::codes;
use crate::api::ApiFailure;

/// The failure of a request that got no status from `whom`.
pub(super) fn of_transport(error: &reqwest::Error, whom: &str) -> ApiFailure {
    ApiFailure {
        code: code(error),
        message: format!("no answer from {whom}: {}", error_chain(error)),
        retry_after: None,
    }
}

fn code(error: &reqwest::Error) -> Code {
    if error.is_timeout() {
        return if error.is_connect() {
            codes::TIMEOUT_CONNECT
        } else {
            codes::TIMEOUT_READ
        };
    }
    if error.is_dns() {
        return codes::CONNECTION_DNS;
    }
    if find(error, |cause| cause.is::<rustls::Error>()) {
        return codes::TLS_FAILED;
    }
    if find(error, is_refusal) {
        return codes::CONNECTION_REFUSED;
    }
    if error.is_connect() {
        return codes::CONNECTION_FAILED;
    }
    if error.is_builder() {
        return codes::REQUEST_INVALID;
    }
    codes::CONNECTION_LOST
}

fn is_refusal(cause: &(dyn Error + 'static)) -> bool {
    cause
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Whether `is_it` holds for the error or anything beneath it.
fn find(error: &(dyn Error + 'static), is_it: impl Fn(&(dyn Error + 'static)) -> bool) -> bool {
    let mut cause = Some(error);
    while let Some(current) = cause {
        if is_it(current) {
            return true;
        }
        cause = beneath(current);
    }
    false
}

/// The next error below. An `io::Error` names as its source what is below the error it wraps, so
/// the wrapped one itself would be skipped.
fn beneath<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let wrapped = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref)
        .map(|wrapped| wrapped as &(dyn Error + 'static));
    wrapped.or_else(|| error.source())
}
