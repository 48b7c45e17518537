//! Identity: tokens, namespace keys and certificates, for both sides of a connection.
//!
//! Jobs, agents and nodes read the same kinds of files with the same checks.
//!
//! Not here: sockets. Jobs block on theirs, agents and nodes do not (`forebay-transport`).
//!
//! **Invariant:** no error quotes the content of a file, and no type that holds a secret prints it.

mod access_key_file;
mod core_dumps;
mod credentials;
mod endpoint_trust;
mod key_file;
mod private_file;
mod tls;
mod tls_errors;

pub use access_key_file::{AccessKey, AccessKeyFileError, read_access_key_file};
pub use core_dumps::disable_core_dumps;
pub use credentials::{Credentials, CredentialsError, Files};
pub use endpoint_trust::TrustError;
pub use key_file::{KeyFileError, create_key_file, read_key_file};
pub use private_file::{
    PrivateFileError, ensure_own_directory, open_own, read_named, read_token_file,
};
pub use tls::{Clients, TlsFileError, Usage, check_signed, client_config, names_of, server_config};
pub use tls_errors::in_words;
