//! The gateway: Tier's S3 endpoint. Clients set `AWS_ENDPOINT_URL` and a key; the gateway answers
//! reads from flash where it can, and passes everything else to the origin.
//!
//! It terminates requests: it verifies the client's signature, and signs again with the origin
//! identity of the client's tenant. A client's own signature could not be forwarded, because
//! clients sign the range that they ask for.
//!
//! | module | contents |
//! |---|---|
//! | `object_request` | the names of a request: principal, object, job |
//! | `objects` | GET and HEAD of objects, from flash |
//! | `origin_client`, `sign`, `credentials`, `origin_tls` | requests to the origin, as a principal |
//! | `s3_error`, `cache_header`, `body`, `encoding` | what the modules share |

pub mod body;
pub mod cache_header;
pub mod credentials;
pub mod encoding;
pub mod object_request;
pub mod objects;
pub mod origin_client;
pub mod origin_tls;
pub mod s3_error;
pub mod sign;
