//! How the client proves who it is.

use std::fmt;

/// How the client proves who it is. Secrets print as `***`.
///
/// ```
/// use tidegate_logger::{Authentication, ClientCredentials};
/// let login = ClientCredentials::new("https://login.example.com/token", "pet-resort", "s3cret");
/// let authentication = Authentication::from(login.scope("events.write"));
/// assert!(!format!("{authentication:?}").contains("s3cret"));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Authentication(pub(super) AuthenticationKind);

#[derive(Debug, Clone, Default)]
pub(super) enum AuthenticationKind {
    #[default]
    None,
    Token(HiddenText),
    ClientCredentials(ClientCredentials),
}

impl Authentication {
    /// No proof: the API listens on loopback only.
    #[must_use]
    pub fn none() -> Self {
        Self(AuthenticationKind::None)
    }

    /// A token that stays the same.
    pub fn token(token: impl Into<String>) -> Self {
        Self(AuthenticationKind::Token(HiddenText(token.into())))
    }
}

impl From<ClientCredentials> for Authentication {
    fn from(credentials: ClientCredentials) -> Self {
        Self(AuthenticationKind::ClientCredentials(credentials))
    }
}

/// Tokens by OAuth 2 client credentials.
///
/// A token is fetched with the first request and kept. It is fetched anew 60 s before it expires, or at
/// half its life when that is shorter than two minutes. An answer that names no life means 3600 s. A
/// token that the API refuses is forgotten, so that the next attempt brings a fresh one.
#[derive(Debug, Clone)]
pub struct ClientCredentials {
    pub(super) token_url: String,
    pub(super) client_id: String,
    pub(super) client_secret: HiddenText,
    pub(super) scope: Option<String>,
}

impl ClientCredentials {
    /// The credentials `client_id` and `client_secret`, shown to `token_url`.
    pub fn new(
        token_url: impl Into<String>,
        client_id: impl Into<String>,
        client_secret: impl Into<String>,
    ) -> Self {
        Self {
            token_url: token_url.into(),
            client_id: client_id.into(),
            client_secret: HiddenText(client_secret.into()),
            scope: None,
        }
    }

    /// Asks for tokens of this scope.
    #[must_use]
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.scope = Some(scope.into());
        self
    }
}

/// A text that is not for logs.
#[derive(Clone)]
pub(super) struct HiddenText(pub(super) String);

impl fmt::Debug for HiddenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
