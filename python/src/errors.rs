//! The exceptions, and which failure is which.

use forebay_client::ClientError;
use forebay_digest::FileError;
use forebay_wire::{ErrorCode, Refusal};
use pyo3::{PyErr, create_exception, exceptions::PyException};

create_exception!(
    forebay,
    ForebayError,
    PyException,
    "What is forebay's own to raise: all its named exceptions. Wrong arguments are `ValueError` or `TypeError`."
);
create_exception!(forebay, DigestError, ForebayError, "The digest cannot be used.");
create_exception!(forebay, ReadError, ForebayError, "An item cannot be had; the text says why.");
create_exception!(
    forebay,
    ChangedError,
    ReadError,
    "The origin has another version of an item's object than the digest; build that again."
);
create_exception!(forebay, TableError, ForebayError, "A table, or a key of one, cannot be used.");
create_exception!(
    forebay,
    Fenced,
    ForebayError,
    "Another process has taken this job's name over; stop, or name one of them otherwise."
);
create_exception!(
    forebay,
    StateError,
    ForebayError,
    "A state or a recording is not of this dataset, order or version, or is damaged."
);
create_exception!(forebay, AgentGone, ForebayError, "The job's agent does not answer.");

/// Whatever else is wrong.
pub fn forebay_error(error: &impl ToString) -> PyErr {
    ForebayError::new_err(error.to_string())
}

/// Why a digest cannot be opened.
pub fn digest_error(error: &FileError) -> PyErr {
    DigestError::new_err(error.to_string())
}

/// Why the agent gave no bytes: it says why, or it is gone and another may be started.
pub fn agent_error(error: &ClientError) -> PyErr {
    match error {
        ClientError::Refused(Refusal { code: ErrorCode::Stopping, .. }) => {
            AgentGone::new_err("the agent is stopping")
        }
        ClientError::Refused(Refusal { code: ErrorCode::Changed, text }) => {
            ChangedError::new_err(text.clone())
        }
        // The agent passes on what the origin or the digest is about.
        ClientError::Refused(Refusal { text, .. }) => ReadError::new_err(text.clone()),
        error if error.is_refusal() => ReadError::new_err(error.to_string()),
        error => AgentGone::new_err(error.to_string()),
    }
}
