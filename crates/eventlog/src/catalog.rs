//! Correlation links and process definitions.

use serde::{Deserialize, Serialize};

use crate::EventLogError;

/// The account that a correlation belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CorrelationLink {
    /// The correlation.
    pub correlation_id: String,
    /// The account.
    pub account_id: String,
    /// The application that linked them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application_id: Option<String>,
    /// The customer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub customer_id: Option<String>,
    /// The last four digits of a card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card_number_last4: Option<String>,
    /// Whether retention keeps the events of the correlation.
    #[serde(default)]
    pub retain: bool,
}

impl CorrelationLink {
    /// Checks its lengths.
    pub(crate) fn check(&self) -> Result<(), EventLogError> {
        text("correlationId", &self.correlation_id, 200)?;
        text("accountId", &self.account_id, 64)?;
        optional("applicationId", self.application_id.as_deref(), 200)?;
        optional("customerId", self.customer_id.as_deref(), 200)?;
        match self.card_number_last4.as_deref() {
            Some(digits) if digits.chars().count() != 4 => Err(EventLogError::request(
                "cardNumberLast4",
                "must have exactly 4 characters",
            )),
            Some(digits) => text("cardNumberLast4", digits, 4),
            None => Ok(()),
        }
    }
}

/// A process as it is defined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewProcess {
    /// Its name, which is unique.
    pub process_name: String,
    /// Its name for people.
    pub display_name: String,
    /// Its purpose.
    pub description: String,
    /// The people who answer for it.
    pub owning_team: String,
    /// How many steps it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_steps: Option<i64>,
    /// How long it may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sla_ms: Option<i64>,
    /// Whether it is in use.
    #[serde(default = "yes")]
    pub is_active: bool,
    /// Whether retention keeps its events.
    #[serde(default)]
    pub retain: bool,
}

fn yes() -> bool {
    true
}

impl NewProcess {
    /// Checks its lengths and numbers.
    pub(crate) fn check(&self) -> Result<(), EventLogError> {
        text("processName", &self.process_name, 510)?;
        text("displayName", &self.display_name, 510)?;
        text("description", &self.description, 2_048)?;
        text("owningTeam", &self.owning_team, 200)?;
        for (path, number) in [
            ("expectedSteps", self.expected_steps),
            ("slaMs", self.sla_ms),
        ] {
            if number.is_some_and(|number| number < 0) {
                return Err(EventLogError::request(path, "must not be negative"));
            }
        }
        Ok(())
    }
}

/// A process that is defined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessDefinition {
    /// Its number.
    pub process_id: i64,
    /// Its definition.
    #[serde(flatten)]
    pub process: NewProcess,
    /// When it was defined.
    pub created_at: String,
}

fn text(path: &str, text: &str, limit: usize) -> Result<(), EventLogError> {
    if text.is_empty() {
        return Err(EventLogError::request(path, "must not be empty"));
    }
    optional(path, Some(text), limit)
}

fn optional(path: &str, text: Option<&str>, limit: usize) -> Result<(), EventLogError> {
    let length = text.map_or(0, |text| text.chars().count());
    if length > limit {
        let message = format!("has {length} characters, and may have at most {limit}");
        return Err(EventLogError::request(path, message));
    }
    if text.is_some_and(|text| text.contains('\0')) {
        return Err(EventLogError::request(
            path,
            "must not hold a zero character",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_has_four_characters_of_a_card_or_none() {
        let link = |digits: Option<&str>| CorrelationLink {
            correlation_id: "a1".to_owned(),
            account_id: "ACC-1".to_owned(),
            application_id: None,
            customer_id: None,
            card_number_last4: digits.map(str::to_owned),
            retain: false,
        };
        assert!(link(None).check().is_ok());
        assert!(link(Some("4242")).check().is_ok());
        for wrong in ["", "424", "42424"] {
            assert!(link(Some(wrong)).check().is_err(), "{wrong}");
        }
    }
}
