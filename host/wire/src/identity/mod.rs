//! Keys, certificates, the authority that signs them, join tokens, and the folders that store them.

mod authority;
mod crypto;
mod error;
mod folder;
mod key;
mod node;
mod peer_error;
mod signing;
mod token;
mod token_error;
mod token_text;
mod trust;

pub use authority::{Authority, CERTIFICATE_LIFETIME_S, CERTIFICATE_LIFETIME_S_MAX};
pub use error::IdentityError;
pub use key::Key;
pub use node::{Identity, NodeFolder};
pub use peer_error::PeerError;
pub use signing::SigningKey;
#[doc(hidden)]
pub use token::fuzz_join_token;
pub use token::{JoinGrant, JoinToken, TOKEN_LIFETIME_S, TOKEN_LIFETIME_S_MAX};
pub use token_error::TokenError;
pub use trust::TrustAnchor;

pub(crate) use authority::request_key;
pub(crate) use crypto::{algorithms, provider};
pub(crate) use key::self_signed_key;
pub(crate) use trust::HandshakeSide;
