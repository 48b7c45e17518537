//! Digests on disk: mapped files, the journal of an unfinished build, and namespace key files.
