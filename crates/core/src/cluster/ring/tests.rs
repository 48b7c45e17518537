//! The ring: ownership is balanced, stable under change, and the same for every observer.

use proptest::prelude::*;

use super::*;
use crate::Zone;

fn member(name: &str, weight: f64, zone: Option<&str>) -> Member {
    Member {
        name: name.parse().unwrap(),
        endpoint: format!("/run/{name}.sock").parse().unwrap(),
        weight: Weight::new(weight).unwrap(),
        zone: zone.map(|zone| zone.parse().unwrap()),
    }
}

pub(super) fn nodes(weights: &[f64]) -> Vec<Member> {
    let one = |(at, weight): (usize, &f64)| member(&format!("node-{at}"), *weight, None);
    weights.iter().enumerate().map(one).collect()
}

pub(super) fn ring(members: Vec<Member>) -> Ring {
    NodeList::new(members, false).unwrap().ring(None).unwrap()
}

fn keys(count: u64) -> impl Iterator<Item = Key> {
    (0..count).map(|at| Key::named(&at.to_string()))
}

fn owner_name(ring: &Ring, key: Key) -> &str {
    ring.members()[ring.owner(key)].name.as_str()
}

#[test]
fn shares_are_in_proportion_to_weights() {
    const KEYS: u64 = 40_000;
    for weights in [&[1.0, 1.0, 1.0][..], &[0.5, 1.0, 2.5, 4.0], &[1.0; 16], &[0.001, 1_000.0]] {
        let ring = ring(nodes(weights));
        let mut owned = vec![0_u64; weights.len()];
        keys(KEYS).for_each(|key| owned[ring.owner(key)] += 1);
        let sum: f64 = weights.iter().sum();
        for (owned, weight) in owned.iter().zip(weights) {
            let share = weight / sum;
            let expected = KEYS as f64 * share;
            // Five standard deviations: by chance, less than once in a million.
            let tolerance = 5.0 * (expected * (1.0 - share)).sqrt() + 1.0;
            assert!(
                (*owned as f64 - expected).abs() < tolerance,
                "{owned} of {expected}: {weights:?}"
            );
        }
    }
}

/// Owners are part of the protocol: another answer would look for every blob on another node.
#[test]
fn owners_never_change_between_versions() {
    let ring = ring(nodes(&[1.0, 1.0, 2.5, 0.5, 7.0]));
    let owners: Vec<usize> = keys(24).map(|key| ring.owner(key)).collect();
    assert_eq!(owners, [4, 4, 4, 1, 2, 1, 2, 2, 2, 4, 0, 4, 4, 2, 4, 2, 4, 3, 4, 2, 1, 4, 0, 0]);
    assert_eq!(ring.order(Key::named("placement")), [4, 0, 2, 3, 1]);
    assert_eq!(ring.order(&Address::from_bytes([7; 32])), [1, 4, 2, 3, 0]);
    let list = NodeList::new(nodes(&[1.0, 2.5]), false).unwrap();
    assert_eq!(list.fingerprint().to_string(), "769a5cb932196716");
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 64,
        ..Default::default()
    })]

    /// For all weights: when a node is removed, no keys move but its own.
    #[test]
    fn a_removed_node_moves_its_own_keys_only(
        weights in prop::collection::vec(0.001..1000.0_f64, 2..12),
        removed in any::<prop::sample::Index>(),
    ) {
        let all = nodes(&weights);
        let removed = removed.index(all.len());
        let removed_name = all[removed].name.as_str().to_owned();
        let mut rest = all.clone();
        rest.remove(removed);
        let (all, rest) = (ring(all), ring(rest));
        for key in keys(300) {
            let (before, after) = (owner_name(&all, key), owner_name(&rest, key));
            prop_assert!(before == after || before == removed_name);
            // The rest of the order stays, so the next node takes over.
            let names = |ring: &Ring| -> Vec<String> {
                let name = |index: usize| ring.members()[index].name.to_string();
                ring.order(key).into_iter().map(name).collect()
            };
            let (mut order, others) = (names(&all), names(&rest));
            prop_assert_eq!(&order[0], before);
            order.retain(|name| *name != removed_name);
            prop_assert_eq!(order, others);
        }
    }

    /// More weight never loses a key.
    #[test]
    fn a_node_with_more_weight_only_gains(
        weights in prop::collection::vec(0.01..100.0_f64, 2..8),
        factor in 1.0..10.0_f64,
    ) {
        let mut grown = nodes(&weights);
        grown[0].weight = Weight::new(weights[0] * factor).unwrap();
        let (before, after) = (ring(nodes(&weights)), ring(grown));
        for key in keys(300) {
            let (before, after) = (before.owner(key), after.owner(key));
            prop_assert!(before == after || after == 0);
        }
    }

    #[test]
    fn the_order_of_the_list_makes_no_difference(seed in any::<u64>()) {
        let sorted = nodes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let mut shuffled = sorted.clone();
        fastrand::Rng::with_seed(seed).shuffle(&mut shuffled);
        let lists = [sorted, shuffled].map(|members| NodeList::new(members, false).unwrap());
        prop_assert_eq!(lists[0].fingerprint(), lists[1].fingerprint());
        prop_assert_eq!(&lists[0], &lists[1]);
    }
}

/// Quiver 4.9: nothing is read across zones.
#[test]
fn isolated_zones_have_rings_of_their_own() {
    let (east, west): (Zone, Zone) = ("east".parse().unwrap(), "west".parse().unwrap());
    let members = || {
        let zone = |at| Some(if at % 2 == 0 { "east" } else { "west" });
        (0..6).map(|at| member(&format!("node-{at}"), 1.0, zone(at))).collect::<Vec<_>>()
    };
    let apart = NodeList::new(members(), true).unwrap();
    let ring = apart.ring(Some(&east)).unwrap();
    assert_eq!(ring.members().len(), 3);
    assert!(ring.members().iter().all(|member| member.zone.as_ref() == Some(&east)));
    let west_ring = apart.ring_of(&"node-1".parse().unwrap()).unwrap();
    assert!(west_ring.members().iter().all(|member| member.zone.as_ref() == Some(&west)));
    assert!(apart.ring(None).is_none() && apart.ring(Some(&"north".parse().unwrap())).is_none());
    let together = NodeList::new(members(), false).unwrap();
    assert_eq!(together.ring(Some(&east)).unwrap().members().len(), 6);
    assert_ne!(together.fingerprint(), apart.fingerprint());
    assert_eq!(ring.index_of(&"node-2".parse().unwrap()), Some(1));
    assert_eq!(ring.index_of(&"node-1".parse().unwrap()), None);
}

#[test]
fn invalid_lists_are_rejected_with_the_remedy() {
    let complaint = |members, isolate| NodeList::new(members, isolate).unwrap_err().to_string();
    assert!(complaint(Vec::new(), false).contains("name at least one"));
    let many = (0..=NODES_MAX).map(|at| member(&format!("n{at}"), 1.0, None)).collect();
    assert!(complaint(many, false).contains("1025 nodes; 1024 are allowed"));
    let mut twins = nodes(&[1.0, 1.0, 1.0]);
    twins[2].name = twins[0].name.clone();
    assert!(complaint(twins, false).contains("two nodes are called `node-0`"));
    let mut same = nodes(&[1.0, 1.0, 1.0]);
    same[2].endpoint = same[0].endpoint.clone();
    let text = complaint(same, false);
    assert!(text.contains("`node-0` and `node-2` have the same endpoint"), "{text}");
    let mut nowhere = nodes(&[1.0]);
    nowhere[0].endpoint = "x".repeat(600).parse().unwrap();
    assert!(complaint(nowhere, false).contains("endpoint of `node-0` is longer than 512"));
    assert!(complaint(nodes(&[1.0]), true).contains("give every node a `zone`"));
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e7, 0.0001] {
        let text = Weight::new(weight).unwrap_err().to_string();
        assert!(text.contains("use a number from 0.001"), "{text}");
    }
    assert!(Weight::from_thousandths(0).is_err());
    assert_eq!(Weight::new(2.5).unwrap().to_string(), "2.5");
}

#[test]
fn the_first_list_stays_until_its_source_reports_another() {
    let list = |count: usize| NodeList::new(nodes(&vec![1.0; count]), false).unwrap();
    let name = |at: usize| format!("node-{at}").parse::<NodeName>().unwrap();
    let membership = |at: usize, count: usize| RingMembership::new(name(at), list(count)).unwrap();
    let mut known = RingView::new(list(3), Some(name(0)));
    assert_eq!(known.on_membership(&name(1), Some(&membership(1, 3))), RingChange::Unchanged);
    let other = list(4).fingerprint();
    assert_eq!(known.on_membership(&name(1), Some(&membership(1, 4))), RingChange::Conflict(other));
    assert_eq!(known.fingerprint(), list(3).fingerprint());
    assert_eq!(known.on_membership(&name(2), Some(&membership(1, 3))), RingChange::WrongNode);
    assert_eq!(known.on_membership(&name(2), None), RingChange::WrongNode, "it has no list");
    assert_eq!(known.on_membership(&name(0), Some(&membership(0, 4))), RingChange::Updated);
    assert_eq!(known.fingerprint(), other);
    assert_eq!(known.list().members().len(), 4);
    let mut from_file = RingView::new(list(3), None);
    assert_eq!(
        from_file.on_membership(&name(0), Some(&membership(0, 4))),
        RingChange::Conflict(other)
    );
    let unlisted = RingMembership::new(name(3), list(3)).unwrap_err().to_string();
    assert!(
        unlisted.contains("`node-3`") && unlisted.contains("node-0, node-1, node-2"),
        "{unlisted}"
    );
    assert_eq!(membership(1, 3).ring().members().len(), 3);
}
