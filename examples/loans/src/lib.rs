#![doc = include_str!("../README.md")]

mod book;
mod loan;
mod notify;
mod routes;
mod service;

pub use loan::{Loan, LoanCommand, LoanRefusal, LoanRequest, LoanStatus, Quote, Terms};
pub use notify::GROUP;
pub use service::{LoanService, ServiceError};
