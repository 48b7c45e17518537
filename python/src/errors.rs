//! The exceptions of the package, and the mapping of errors to them.

use forebay_client::ClientError;
use forebay_core::util::printable::printable_lines;
use forebay_digest::DigestFileError;
use forebay_wire::{ErrorCode, Refusal};
use pyo3::{PyErr, create_exception, exceptions::PyException};

create_exception!(
    forebay,
    ForebayError,
    PyException,
    "Base class of forebay's exceptions. Wrong arguments raise `ValueError` or `TypeError`."
);
create_exception!(
    forebay,
    DigestError,
    ForebayError,
    "A digest cannot be used; the text has the reason."
);
create_exception!(
    forebay,
    ReadError,
    ForebayError,
    "An item cannot be read; the text names the object and the reason."
);
create_exception!(
    forebay,
    ChangedError,
    ReadError,
    "The origin has another version of an object than the digest; build the digest again."
);
create_exception!(
    forebay,
    TableError,
    ForebayError,
    "An embedding table, or a key of one, cannot be used."
);
create_exception!(
    forebay,
    StreamError,
    ForebayError,
    "A store or a stream cannot be used; the text has the reason and the remedy."
);
create_exception!(
    forebay,
    StoreFull,
    StreamError,
    "A store has no space for a block; the append can be tried again."
);
create_exception!(
    forebay,
    StreamLost,
    StreamError,
    "Blocks of a sealed stream are lost; the text names them. Write the stream again."
);
create_exception!(
    forebay,
    Fenced,
    ForebayError,
    "Another process has taken over this job's name; stop, or give one of them another name."
);
create_exception!(
    forebay,
    StateError,
    ForebayError,
    "A state or recording is of another dataset, order or version, or is damaged."
);
create_exception!(forebay, AgentGone, ForebayError, "The job's agent does not answer.");

/// The text of an error for a terminal. Servers and other users have written parts of it.
pub fn shown(error: &impl ToString) -> String {
    printable_lines(&error.to_string()).into_owned()
}

/// The exception of an error that has no class of its own.
pub fn forebay_error(error: &impl ToString) -> PyErr {
    ForebayError::new_err(shown(error))
}

/// The exception of a digest that cannot be opened.
pub fn digest_error(error: &DigestFileError) -> PyErr {
    DigestError::new_err(shown(error))
}

/// The exception of a failed request to the agent: its refusal, or that it is gone and can be
/// started again.
pub fn agent_error(error: &ClientError) -> PyErr {
    match error {
        ClientError::Refused(Refusal { code: ErrorCode::Stopping, .. }) => {
            AgentGone::new_err("the agent is stopping")
        }
        ClientError::Refused(Refusal { code: ErrorCode::Changed, text }) => {
            ChangedError::new_err(shown(text))
        }
        // The text is the agent's error about the origin or the digest.
        ClientError::Refused(Refusal { text, .. }) => ReadError::new_err(shown(text)),
        error if error.is_refusal() => ReadError::new_err(shown(error)),
        error => AgentGone::new_err(shown(error)),
    }
}
