//! What is said until a dataset is open: hello, show, then a proof or an upload.
//!
//! Here is only the conversation: the next request comes out, its reply goes in, until there is a handle.
//! The job's blocking client and the agent's tasks both carry it, each over a socket of its own kind.

use std::time::Duration;

use forebay_core::{
    BlobOrdinal, NamespaceId,
    digest::{Digest, DigestError},
    table,
};
use forebay_identity::Credentials;
use forebay_wire::{BlobLength, Refusal, Reply, Request, SentToken, ShowAnswer, VERSIONS};

/// Rows of a table that go into one page: well under a frame.
const PAGE_ROWS: u64 = 1 << 15;

/// Why a conversation came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// What came back does not answer what was asked.
    #[error("the other side gave an answer to something else")]
    Unexpected,
    /// The other side refused.
    #[error("the node refused: {0}")]
    Refused(#[from] Refusal),
    /// The digest says whose it is in words that mean nothing.
    #[error("the digest's namespace is neither `public` nor an id; build it again")]
    Namespace,
    /// The digest's own row cannot be read.
    #[error(transparent)]
    Digest(#[from] DigestError),
}

/// An opened dataset, valid on the connection that opened it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle(pub u32);

/// The first request of every connection.
pub fn hello(job: &str, credentials: &Credentials) -> Request {
    let (version_min, version_max) = VERSIONS;
    let token = SentToken(credentials.token().to_vec());
    Request::Hello { version_min, version_max, job: job.to_owned(), token }
}

/// Understands the answer to [`hello`]: how long a claim lives without being renewed.
pub fn greeted(reply: Reply) -> Result<Duration, OpenError> {
    let (oldest, newest) = VERSIONS;
    match reply {
        Reply::Hello { version, lease_ms } if (oldest..=newest).contains(&version) => {
            Ok(Duration::from_millis(lease_ms.into()))
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
    asked: Asked,
}

/// What the next reply answers.
#[derive(Debug)]
enum Asked {
    Show,
    Prove,
    Page {
        /// Where the next one begins.
        end: u64,
    },
    LastPage,
}

/// How it goes on.
#[derive(Debug)]
pub enum Next {
    /// Ask this.
    Ask(Request),
    /// It is open.
    Open(Handle),
}

impl<'a> Opening<'a> {
    /// Begins, with the first request.
    pub fn begin(digest: &'a Digest) -> Result<(Self, Request), OpenError> {
        let namespace = digest.namespace().ok_or(OpenError::Namespace)?;
        let show = Request::Show { namespace, dataset: digest.summary().dataset };
        Ok((Self { digest, namespace, asked: Asked::Show }, show))
    }

    /// Takes the reply to the last request.
    pub fn reply(&mut self, reply: Reply) -> Result<Next, OpenError> {
        match (&self.asked, reply) {
            (_, Reply::Error(refusal)) => Err(refusal.into()),
            (Asked::Show, Reply::Show(ShowAnswer::Prove { nonce })) => {
                let proof = table::proof_of(self.digest, &nonce)?;
                self.asked = Asked::Prove;
                Ok(Next::Ask(Request::Prove { dataset: self.digest.summary().dataset, proof }))
            }
            (Asked::Show, Reply::Show(ShowAnswer::Upload)) => self.page(0),
            (Asked::Page { end }, Reply::Uploaded { next }) if next == *end => self.page(next),
            (Asked::Prove | Asked::LastPage, Reply::Open { handle }) => {
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
        self.asked = if end < summary.blobs { Asked::Page { end } } else { Asked::LastPage };
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
mod tests {
    use forebay_core::{
        ByteSize, Namespace,
        chunking::Chunking,
        digest::{DatasetIdHasher, DigestWriter, Header, Summary},
    };
    use forebay_wire::ErrorCode;

    use super::*;

    /// A digest of nothing: its table is one empty page.
    fn digest(namespace: &str) -> Digest {
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
        let writer = DigestWriter::new(Vec::new(), Header { summary, columns: Vec::new() });
        Digest::open(writer.unwrap().finish().unwrap().into()).unwrap()
    }

    fn replies() -> Vec<Reply> {
        vec![
            Reply::Show(ShowAnswer::Prove { nonce: [1; 32] }),
            Reply::Show(ShowAnswer::Upload),
            Reply::Open { handle: 7 },
            Reply::Uploaded { next: 0 },
            Reply::Uploaded { next: u64::MAX },
            Reply::Wanted,
            Reply::Error(Refusal { code: ErrorCode::Unknown, text: "no".to_owned() }),
        ]
    }

    /// Whatever the other side says, and in whatever order: it opens only by a proof or an upload, and
    /// there is no way to go on for ever.
    #[test]
    fn a_dataset_opens_in_two_ways_only() {
        let digest = digest("public");
        let mut opened = Vec::new();
        for (first, second) in (0..49).map(|both| (both / 7, both % 7)) {
            let (mut opening, show) = Opening::begin(&digest).unwrap();
            assert!(matches!(show, Request::Show { .. }));
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
    fn strangers_are_recognised() {
        let hello = |version| Reply::Hello { version, lease_ms: 250 };
        assert_eq!(greeted(hello(1)).unwrap(), Duration::from_millis(250));
        assert!(matches!(greeted(hello(VERSIONS.1 + 1)), Err(OpenError::Unexpected)));
        assert!(matches!(greeted(Reply::Wanted), Err(OpenError::Unexpected)));
        let foreign = digest("somebody's");
        assert!(matches!(Opening::begin(&foreign), Err(OpenError::Namespace)));
        let other = Namespace::secret([9; 32]).unwrap().id().to_string();
        assert!(Opening::begin(&digest(&other)).is_ok());
    }
}
