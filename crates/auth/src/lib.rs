//! Who speaks, and how one knows: secrets in files, tokens and certificates, for both sides of a connection.
//!
//! Jobs, agents and nodes read the same kinds of files with the same suspicion. Sockets are none of this
//! crate's business: jobs block on theirs, agents and nodes do not.
//!
//! **Invariant:** no error quotes what is in a file, and nothing here that holds a secret can be printed.

mod credentials;
mod key_file;
mod private_file;
mod tls;
mod words;

pub use credentials::{Credentials, CredentialsError, Files};
pub use key_file::{KeyFileError, create_key_file, read_key_file};
pub use private_file::{PrivateFileError, read_token_file};
pub use tls::{Clients, TlsFileError, Usage, check_signed, client_config, names_of, server_config};
pub use words::in_words;
