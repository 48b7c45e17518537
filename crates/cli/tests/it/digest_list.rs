//! `digest list`: objects are listed and not read, and a listing is not taken for a digest.

use crate::harness::{Sandbox, content};

const URL: &str = "s3://bucket/train";

#[test]
fn a_listing_reads_no_object_and_keeps_the_chunks_of_an_earlier_one() {
    let sandbox = Sandbox::with_objects(60, 3000);
    let origin = sandbox.serve(|_| {});
    let list = |name: &str, options: &[&str]| {
        let args = ["digest", "list", URL, "-o", name, "--format", "json"];
        sandbox.forebay(args.iter().chain(options)).reaching(&origin).succeeds().json()
    };
    let first = list("x.listing", &[]);
    assert_eq!((first["items"].as_u64(), first["layout"].as_str()), (Some(60), Some("listing")));
    assert_eq!(list("y.listing", &[])["dataset"], first["dataset"]);
    let counters = origin.counters();
    // One request locates the URL, and one lists the page.
    assert_eq!((counters.requests.get, counters.requests.list), (0, 2 * 2));

    sandbox.build_from(&origin, "x.digest", &["--chunks", "7"]).succeeds();
    sandbox.write("zzz", &content(1, 10));
    let changed = list("z.listing", &["--from", "x.digest"]);
    assert_eq!(changed["chunking"]["chunks"], 7, "{changed}");
    assert_ne!(changed["dataset"], first["dataset"]);
}

#[test]
fn a_listing_is_refused_where_a_digest_is_needed() {
    let sandbox = Sandbox::with_objects(5, 300);
    let origin = sandbox.serve(|_| {});
    let list = ["digest", "list", URL, "-o", "x.listing"];
    sandbox.forebay(list).reaching(&origin).succeeds();
    let refused = ["is a listing of objects", "forebay digest build"];
    sandbox.forebay(["digest", "show", "x.listing"]).refuses(&refused);
    sandbox.forebay(["warm", "x.listing"]).reaching(&origin).refuses(&refused);
    let agent = ["agent", "x.listing", "--socket", "a.sock", "--node", "n.sock"];
    sandbox.forebay(agent).reaching(&origin).refuses(&["is a listing", "leave out --node"]);
    let nothing = ["digest", "list", "s3://bucket/none", "-o", "y.listing"];
    sandbox.forebay(nothing).reaching(&origin).refuses(&["check the prefix"]);
}
