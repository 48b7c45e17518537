//! The gateway: Tier's S3 endpoint. Clients set `AWS_ENDPOINT_URL` and a key; the gateway answers
//! reads from flash where it can, and passes everything else to the origin.
//!
//! It terminates requests: it verifies the client's signature, and signs again with the origin
//! identity of the client's tenant. A client's own signature could not be forwarded, because
//! clients sign the range that they ask for.
//!
//! | module | contents |
//! |---|---|
//! | `config`, `tenants` | the table `[gateway]`; access keys and whose they are |
//! | `front` | connections, limits, addressing, the route behind the signature check |
//! | `verify` | checks before the signature |
//! | `pass` | what the object path does not answer, streamed both ways; what a write forgets |
//! | `object_request` | the names of a request: principal, object, job |
//! | `objects` | GET and HEAD of objects, from flash |
//! | `origin_client`, `origin_tls`, `sign` | requests to the origin, as a principal |
//! | `credentials`, `assume_role` | origin identities |
//! | `s3_error`, `cache_header`, `body`, `encoding`, `metrics` | what the modules share |

mod assume_role;
pub mod body;
pub mod cache_header;
pub mod config;
pub mod credentials;
pub mod encoding;
mod front;
pub mod metrics;
pub mod object_request;
pub mod objects;
pub mod origin_client;
pub mod origin_tls;
mod pass;
pub mod s3_error;
pub mod sign;
mod tenants;
mod verify;

pub use config::{GatewayConfig, GatewayTenant};
pub use front::Gateway;
pub use pass::keys_of_delete;
pub use tenants::{TRUSTED_KEY, TRUSTED_SECRET};
pub use verify::parse_authorization;
