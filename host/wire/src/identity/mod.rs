//! Who this end is, and how it knows who others are: keys, certificates, the authority that signs them, join tokens,
//! and the folders that keep them.

mod authority;
mod error;
mod folder;
mod key;
mod node;
mod token;
mod token_text;
mod trust;

pub use authority::{Authority, CERTIFICATE_LIFETIME_S, CERTIFICATE_LIFETIME_S_MAX};
pub use error::IdentityError;
pub use key::Key;
pub use node::{Identity, NodeFolder};
pub use token::{Grant, JoinToken, TOKEN_LIFETIME_S, TOKEN_LIFETIME_S_MAX, TokenError};
pub use trust::{PeerError, Trust};

pub(crate) use authority::request_key;
pub(crate) use key::is_stranger;
pub(crate) use trust::{Side, algorithms};
