//! Handshake: hello, then open a dataset by a proof of possession or an upload of its blob table.
//!
//! This is a state machine without I/O: requests come out, replies go in, until there is a handle.
//! The job's blocking client and the agent's tasks both drive it.

use std::time::Duration;

use forebay_auth::Credentials;
use forebay_core::{BlobOrdinal, NamespaceId};
use forebay_digest::{Digest, DigestError};
use forebay_wire::{
    BlobLength, OpenAnswer, Refusal, Reply, Request, SentToken, VERSION_WRONG_BYTES, VERSIONS,
};

/// Rows of a blob table per page, well below the size of a frame.
const PAGE_ROWS: u64 = 1 << 15;

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The reply does not match the request.
    #[error("the server sent a reply that does not match the request; restart it")]
    Unexpected,
    /// The server refused.
    #[error("the node refused: {0}")]
    Refused(#[from] Refusal),
    /// The digest's namespace is malformed.
    #[error("the digest's namespace is neither `public` nor an id; build it again")]
    Namespace,
    /// A row of the digest cannot be read.
    #[error(transparent)]
    Digest(#[from] DigestError),
}

/// A connection's number for a dataset that it has opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle(pub u32);

/// The first request of every connection.
pub fn hello(job: &str, credentials: &Credentials) -> Request {
    let (version_min, version_max) = VERSIONS;
    let token = SentToken(credentials.token().to_vec());
    Request::Hello { version_min, version_max, job: job.to_owned(), token }
}

/// What the reply to [`hello`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Welcome {
    /// Time after which a claim ends unless it is renewed.
    pub lease: Duration,
    /// The version of the protocol that both sides support.
    pub version: u16,
}

impl Welcome {
    /// Whether the node accepts reports of wrong bytes.
    pub fn accepts_wrong_bytes(self) -> bool {
        self.version >= VERSION_WRONG_BYTES
    }
}

/// Checks the reply to [`hello`].
pub fn greeted(reply: Reply) -> Result<Welcome, OpenError> {
    let (oldest, newest) = VERSIONS;
    match reply {
        Reply::Hello { version, lease_ms } if (oldest..=newest).contains(&version) => {
            Ok(Welcome { lease: Duration::from_millis(lease_ms.into()), version })
        }
        Reply::Error(refusal) => Err(refusal.into()),
        _ => Err(OpenError::Unexpected),
    }
}

/// A dataset that is being opened.
#[derive(Debug)]
pub struct Opening<'a> {
    digest: &'a Digest,
    namespace: NamespaceId,
    awaiting: Awaiting,
}

/// The request whose reply comes next.
#[derive(Debug)]
enum Awaiting {
    Open,
    Prove,
    Page {
        /// The first row of the next page.
        end: u64,
    },
    LastPage,
}

/// The next step of a handshake.
#[derive(Debug)]
pub enum Next {
    /// Send this request.
    Ask(Request),
    /// The dataset is open.
    Open(Handle),
}

impl<'a> Opening<'a> {
    /// Starts, and returns the first request.
    pub fn begin(digest: &'a Digest) -> Result<(Self, Request), OpenError> {
        let namespace = digest.namespace().ok_or(OpenError::Namespace)?;
        let open = Request::Open { namespace, dataset: digest.summary().dataset };
        Ok((Self { digest, namespace, awaiting: Awaiting::Open }, open))
    }

    /// Takes the reply to the last request.
    pub fn reply(&mut self, reply: Reply) -> Result<Next, OpenError> {
        match (&self.awaiting, reply) {
            (_, Reply::Error(refusal)) => Err(refusal.into()),
            (Awaiting::Open, Reply::OpenAnswer(OpenAnswer::Prove { nonce })) => {
                let proof = forebay_digest::proof_of(self.digest, &nonce)?;
                self.awaiting = Awaiting::Prove;
                Ok(Next::Ask(Request::Prove { dataset: self.digest.summary().dataset, proof }))
            }
            (Awaiting::Open, Reply::OpenAnswer(OpenAnswer::Upload)) => self.page(0),
            (Awaiting::Page { end }, Reply::Uploaded { next }) if next == *end => self.page(next),
            (Awaiting::Prove | Awaiting::LastPage, Reply::Open { handle }) => {
                Ok(Next::Open(Handle(handle)))
            }
            _ => Err(OpenError::Unexpected),
        }
    }

    fn page(&mut self, first: u64) -> Result<Next, OpenError> {
        let summary = self.digest.summary();
        let end = summary.blobs.min(first + PAGE_ROWS);
        let row = |at| {
            let row = self.digest.blob(BlobOrdinal::new(at))?;
            Ok(BlobLength { address: row.address, length: row.length })
        };
        let page = (first..end).map(row).collect::<Result<_, DigestError>>()?;
        self.awaiting =
            if end < summary.blobs { Awaiting::Page { end } } else { Awaiting::LastPage };
        Ok(Next::Ask(Request::Upload {
            namespace: self.namespace,
            dataset: summary.dataset,
            chunks: summary.chunking.chunks(),
            partitions: summary.chunking.partitions(),
            blobs: summary.blobs,
            first,
            page,
        }))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use forebay_core::dataset::DatasetIdHasher;
    use forebay_core::{ByteSize, Namespace, dataset::chunking::Chunking};
    use forebay_digest::{DigestWriter, Header, Summary};
    use forebay_wire::ErrorCode;

    use super::*;

    /// A digest of nothing: its table is one empty page.
    pub(crate) fn digest(namespace: &str) -> Digest {
        let chunking = Chunking::for_dataset(ByteSize(0), 0);
        let summary = Summary {
            dataset: DatasetIdHasher::new().finish(chunking),
            namespace: namespace.to_owned(),
            origin: "file:///nowhere".to_owned(),
            layout: "files".to_owned(),
            chunking,
            items: 0,
            blobs: 0,
            bytes: 0,
        };
        let writer = DigestWriter::new(
            Vec::new(),
            Header { summary, columns: Vec::new(), has_trees: false },
        );
        Digest::open(writer.unwrap().finish().unwrap().into()).unwrap()
    }

    fn replies() -> Vec<Reply> {
        vec![
            Reply::OpenAnswer(OpenAnswer::Prove { nonce: [1; 32] }),
            Reply::OpenAnswer(OpenAnswer::Upload),
            Reply::Open { handle: 7 },
            Reply::Uploaded { next: 0 },
            Reply::Uploaded { next: u64::MAX },
            Reply::PrefetchNoted,
            Reply::Error(Refusal { code: ErrorCode::Unknown, text: "no".to_owned() }),
        ]
    }

    /// Over all pairs of replies: a dataset opens only by a proof or an upload, and the handshake
    /// always ends.
    #[test]
    fn a_dataset_opens_by_a_proof_or_an_upload_only() {
        let digest = digest("public");
        let mut opened = Vec::new();
        for (first, second) in (0..49).map(|both| (both / 7, both % 7)) {
            let (mut opening, open) = Opening::begin(&digest).unwrap();
            assert!(matches!(open, Request::Open { .. }));
            let Ok(Next::Ask(request)) = opening.reply(replies().remove(first)) else { continue };
            match opening.reply(replies().remove(second)) {
                Ok(Next::Open(handle)) => opened.push((request, handle)),
                Ok(Next::Ask(again)) => panic!("{again:?} after {request:?}"),
                Err(OpenError::Refused(_)) => assert_eq!(second, 6),
                Err(error) => assert!(matches!(error, OpenError::Unexpected) && second != 2),
            }
        }
        assert!(
            matches!(
                opened[..],
                [(Request::Prove { .. }, Handle(7)), (Request::Upload { .. }, Handle(7))]
            ),
            "{opened:?}"
        );
    }

    #[test]
    fn foreign_versions_replies_and_namespaces_are_rejected() {
        let hello = |version| Reply::Hello { version, lease_ms: 250 };
        let lease = Duration::from_millis(250);
        assert_eq!(greeted(hello(1)).unwrap(), Welcome { lease, version: 1 });
        assert!(!greeted(hello(1)).unwrap().accepts_wrong_bytes(), "an older node");
        assert!(greeted(hello(2)).unwrap().accepts_wrong_bytes());
        assert!(matches!(greeted(hello(VERSIONS.1 + 1)), Err(OpenError::Unexpected)));
        assert!(matches!(greeted(Reply::PrefetchNoted), Err(OpenError::Unexpected)));
        let foreign = digest("not-an-id");
        assert!(matches!(Opening::begin(&foreign), Err(OpenError::Namespace)));
        let other = Namespace::secret([9; 32]).unwrap().id().to_string();
        assert!(Opening::begin(&digest(&other)).is_ok());
    }
}
