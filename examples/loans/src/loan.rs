//! A loan, and every rule about it. Nothing here knows a database, a topic or HTTP.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How far a loan is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum LoanStatus {
    /// Somebody has to look at it.
    PendingApproval,
    /// It can be contracted.
    Approved,
    /// It was refused for good.
    Rejected,
    /// The contract is signed.
    Contracted,
    /// The money was paid out, and is being paid back.
    Disbursed,
    /// All of it was paid back.
    Paid,
}

const NAMES: [(LoanStatus, &str); 6] = [
    (LoanStatus::PendingApproval, "PENDING_APPROVAL"),
    (LoanStatus::Approved, "APPROVED"),
    (LoanStatus::Rejected, "REJECTED"),
    (LoanStatus::Contracted, "CONTRACTED"),
    (LoanStatus::Disbursed, "DISBURSED"),
    (LoanStatus::Paid, "PAID"),
];

impl fmt::Display for LoanStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(status, _)| status == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

impl FromStr for LoanStatus {
    type Err = UnknownStatus;

    fn from_str(text: &str) -> Result<Self, UnknownStatus> {
        let found = NAMES.iter().find(|(_, name)| *name == text);
        found
            .map(|(status, _)| *status)
            .ok_or_else(|| UnknownStatus(text.to_owned()))
    }
}

/// A row has a status that this service does not know.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no status of a loan")]
pub struct UnknownStatus(String);

/// The terms of the house.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Loans up to this amount are approved at once.
    pub approval_limit_cents: i64,
    /// Whether somebody looks at larger ones. If nobody does, they are approved at once, too.
    pub manual_approval: bool,
    /// The flat interest of a year, in hundredths of a percent.
    pub yearly_rate_bp: i64,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            approval_limit_cents: 1_000_000,
            manual_approval: true,
            yearly_rate_bp: 600,
        }
    }
}

/// A wish for a loan.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoanRequest {
    /// Who asks.
    pub customer: String,
    /// How much is wanted.
    pub amount_cents: i64,
    /// How many months it takes to pay it back.
    pub months: i64,
}

/// The price of a loan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Quote {
    /// Everything that is to be paid back.
    pub total_cents: i64,
    /// One of the equal installments; the last one may be smaller.
    pub installment_cents: i64,
    /// Whether somebody would have to approve it.
    pub needs_approval: bool,
}

/// The largest amount and the longest time that anybody can ask for.
const MOST_CENTS: i64 = 10_000_000_000;
const MOST_MONTHS: i64 = 480;

impl Terms {
    /// The price of a loan that somebody asks for.
    ///
    /// # Errors
    /// Everything that is wrong with the request.
    pub fn quote(&self, request: &LoanRequest) -> Result<Quote, LoanRefusal> {
        let mut wrong = Vec::new();
        if request.customer.trim().is_empty() || request.customer.len() > 100 {
            wrong.push("`customer` must have 1 to 100 characters".to_owned());
        }
        if !(1..=MOST_CENTS).contains(&request.amount_cents) {
            wrong.push(format!("`amountCents` must be 1 to {MOST_CENTS}"));
        }
        if !(1..=MOST_MONTHS).contains(&request.months) {
            wrong.push(format!("`months` must be 1 to {MOST_MONTHS}"));
        }
        if !wrong.is_empty() {
            return Err(LoanRefusal::Invalid(wrong.join("; ")));
        }
        let parts = 12 * 10_000;
        let interest = request.amount_cents * self.yearly_rate_bp * request.months / parts;
        let total_cents = request.amount_cents + interest;
        let installment_cents = (total_cents + request.months - 1) / request.months;
        Ok(Quote {
            total_cents,
            installment_cents,
            needs_approval: self.manual_approval
                && request.amount_cents > self.approval_limit_cents,
        })
    }
}

/// A loan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Loan {
    /// Its id, which is also the key of its events.
    pub id: String,
    /// Who has it.
    pub customer: String,
    /// How much was asked for.
    pub amount_cents: i64,
    /// How much is still to be paid back; 0 before the money was paid out.
    pub balance_cents: i64,
    /// Everything that is to be paid back.
    pub total_cents: i64,
    /// How far it is.
    pub status: LoanStatus,
}

/// A change that somebody asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoanCommand {
    /// Say yes.
    Approve,
    /// Say no, for good.
    Reject,
    /// Sign the contract.
    Contract,
    /// Pay the money out.
    Disburse,
    /// Take a payment of so many cents.
    Pay(i64),
}

/// Why a change is not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoanRefusal {
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The loan is not where this change begins.
    #[error("loan {id} is {status}, and must be {wanted} for this")]
    Status {
        /// The loan.
        id: String,
        /// How far it is.
        status: LoanStatus,
        /// How far it would have to be.
        wanted: LoanStatus,
    },
    /// There is no such loan.
    #[error("there is no loan {0}")]
    Unknown(String),
}

impl Loan {
    /// A new loan, and the type of its event.
    ///
    /// # Errors
    /// Everything that is wrong with the request.
    pub fn create(
        id: String,
        request: LoanRequest,
        terms: &Terms,
    ) -> Result<(Self, &'static str), LoanRefusal> {
        let quote = terms.quote(&request)?;
        let (status, event) = match quote.needs_approval {
            true => (LoanStatus::PendingApproval, "LoanCreated"),
            false => (LoanStatus::Approved, "LoanApproved"),
        };
        let loan = Self {
            id,
            customer: request.customer,
            amount_cents: request.amount_cents,
            balance_cents: 0,
            total_cents: quote.total_cents,
            status,
        };
        Ok((loan, event))
    }

    /// The loan after a change, and the type of the event that tells it.
    ///
    /// # Errors
    /// The change is refused, and the loan stays as it is.
    pub fn apply(&self, command: LoanCommand) -> Result<(Self, &'static str), LoanRefusal> {
        let mut next = self.clone();
        let event = match command {
            LoanCommand::Approve => {
                self.must_be(LoanStatus::PendingApproval)?;
                next.status = LoanStatus::Approved;
                "LoanApproved"
            }
            LoanCommand::Reject => {
                self.must_be(LoanStatus::PendingApproval)?;
                next.status = LoanStatus::Rejected;
                "LoanRejected"
            }
            LoanCommand::Contract => {
                self.must_be(LoanStatus::Approved)?;
                next.status = LoanStatus::Contracted;
                "LoanContracted"
            }
            LoanCommand::Disburse => {
                self.must_be(LoanStatus::Contracted)?;
                next.status = LoanStatus::Disbursed;
                next.balance_cents = self.total_cents;
                "LoanDisbursed"
            }
            LoanCommand::Pay(cents) => {
                if cents <= 0 {
                    let why = format!("a payment must be above 0, and is {cents} cents");
                    return Err(LoanRefusal::Invalid(why));
                }
                self.must_be(LoanStatus::Disbursed)?;
                if cents > self.balance_cents {
                    let balance = self.balance_cents;
                    let why = format!("{cents} cents are more than the balance of {balance} cents");
                    return Err(LoanRefusal::Invalid(why));
                }
                next.balance_cents -= cents;
                match next.balance_cents {
                    0 => {
                        next.status = LoanStatus::Paid;
                        "LoanPaid"
                    }
                    _ => "LoanPaymentReceived",
                }
            }
        };
        Ok((next, event))
    }

    fn must_be(&self, wanted: LoanStatus) -> Result<(), LoanRefusal> {
        match self.status == wanted {
            true => Ok(()),
            false => Err(LoanRefusal::Status {
                id: self.id.clone(),
                status: self.status,
                wanted,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(amount_cents: i64) -> LoanRequest {
        LoanRequest {
            customer: "ada".to_owned(),
            amount_cents,
            months: 12,
        }
    }

    fn loan(amount_cents: i64) -> Loan {
        let made = Loan::create("7".to_owned(), request(amount_cents), &Terms::default());
        made.unwrap().0
    }

    #[test]
    fn o20_the_limit_and_the_flag_decide_about_approval() {
        let (limit, terms) = (Terms::default().approval_limit_cents, Terms::default());
        for (amount, manual_approval, status) in [
            (limit, true, LoanStatus::Approved),
            (limit + 1, true, LoanStatus::PendingApproval),
            (limit + 1, false, LoanStatus::Approved),
        ] {
            let terms = Terms {
                manual_approval,
                ..terms
            };
            let (loan, _) = Loan::create("7".to_owned(), request(amount), &terms).unwrap();
            assert_eq!(loan.status, status, "{amount} {manual_approval}");
        }
    }

    #[test]
    fn each_change_begins_in_one_status() {
        use LoanCommand::{Approve, Contract, Disburse, Pay, Reject};
        let mut large = loan(2_000_000);
        assert!(large.apply(Contract).is_err());
        let (rejected, _) = large.apply(Reject).unwrap();
        for command in [Approve, Reject, Contract, Disburse, Pay(1)] {
            assert!(rejected.apply(command).is_err(), "{command:?}");
        }
        for (command, status, event) in [
            (Approve, LoanStatus::Approved, "LoanApproved"),
            (Contract, LoanStatus::Contracted, "LoanContracted"),
            (Disburse, LoanStatus::Disbursed, "LoanDisbursed"),
            (Pay(1), LoanStatus::Disbursed, "LoanPaymentReceived"),
            (Pay(2_119_999), LoanStatus::Paid, "LoanPaid"),
        ] {
            let (next, told) = large.apply(command).unwrap();
            assert_eq!((next.status, told), (status, event));
            large = next;
        }
        assert_eq!(large.balance_cents, 0);
        assert!(large.apply(Pay(1)).is_err());
    }

    #[test]
    fn everything_that_is_wrong_with_a_request_is_said_at_once() {
        let wrong = LoanRequest {
            customer: " ".to_owned(),
            amount_cents: 0,
            months: 481,
        };
        let why = Terms::default().quote(&wrong).unwrap_err().to_string();
        for key in ["customer", "amountCents", "months"] {
            assert!(why.contains(key), "{why}");
        }
    }

    #[test]
    fn a_quote_adds_flat_interest() {
        let quote = Terms::default().quote(&request(100_000)).unwrap();
        assert_eq!(
            (quote.total_cents, quote.installment_cents),
            (106_000, 8_834)
        );
        assert!(!quote.needs_approval);
    }

    #[test]
    fn a_status_is_written_and_read_alike() {
        for (status, name) in NAMES {
            assert_eq!(status.to_string(), name);
            assert_eq!(name.parse::<LoanStatus>().unwrap(), status);
            assert_eq!(serde_json::to_value(status).unwrap(), name);
        }
    }
}
