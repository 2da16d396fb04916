//! What any sequence of draws, joins and leaves keeps true.

use std::collections::BTreeMap;

use forebay_placement::{BucketId, Placement};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Operation {
    Draw { bucket: u64, load: u64 },
    DrawFitting { bucket: u64, load: u64, fits: u32 },
    Resize { bucket: u64, load: u64 },
    Remove { bucket: u64 },
    Join { home: u32 },
    Leave { home: u32 },
}

fn operation() -> impl Strategy<Value = Operation> {
    let (bucket, load, home) = (0..60u64, 0..100u64, 0..6u32);
    prop_oneof![
        6 => (bucket.clone(), load.clone()).prop_map(|(bucket, load)| Operation::Draw { bucket, load }),
        2 => (bucket.clone(), load.clone(), home.clone())
            .prop_map(|(bucket, load, fits)| Operation::DrawFitting { bucket, load, fits }),
        2 => (bucket.clone(), load).prop_map(|(bucket, load)| Operation::Resize { bucket, load }),
        2 => bucket.prop_map(|bucket| Operation::Remove { bucket }),
        2 => home.clone().prop_map(|home| Operation::Join { home }),
        1 => home.prop_map(|home| Operation::Leave { home }),
    ]
}

/// Where the caller believes each bucket to be, with its load.
type Believed = BTreeMap<u64, (Option<u32>, u64)>;

fn apply(placement: &mut Placement, believed: &mut Believed, operation: &Operation) {
    match *operation {
        Operation::Draw { bucket, load } => {
            let home = placement.draw(BucketId(bucket), load, |_| true);
            assert_eq!(home.is_some(), placement.homes().next().is_some());
            believed.insert(bucket, (home, load));
        }
        Operation::DrawFitting { bucket, load, fits } => {
            let home = placement.draw(BucketId(bucket), load, |home| home == fits);
            assert_eq!(home, placement.homes().find(|home| *home == fits));
            believed.insert(bucket, (home, load));
        }
        Operation::Resize { bucket, load } => {
            placement.resize(BucketId(bucket), load);
            believed.entry(bucket).and_modify(|entry| entry.1 = load);
        }
        Operation::Remove { bucket } => {
            placement.remove(BucketId(bucket));
            believed.remove(&bucket);
        }
        Operation::Join { home } => join(placement, believed, home),
        Operation::Leave { home } => leave(placement, believed, home),
    }
}

fn join(placement: &mut Placement, believed: &mut Believed, home: u32) {
    let is_new = placement.homes().all(|known| known != home);
    let placed = believed.values().filter(|(home, _)| home.is_some()).count();
    let moves = placement.join(home);
    let share = if is_new {
        placed / placement.homes().count()
    } else {
        0
    };
    assert_eq!(moves.len(), share, "b / G buckets move");
    for moved in moves {
        assert_eq!(moved.to, Some(home));
        assert_ne!(moved.from, Some(home));
        believed.get_mut(&moved.bucket.0).expect("a known bucket").0 = Some(home);
    }
}

fn leave(placement: &mut Placement, believed: &mut Believed, home: u32) {
    let moves = placement.leave(home);
    assert_eq!(placement.count_on(home), 0, "nothing is left on a leaver");
    for moved in moves {
        assert_eq!(moved.from, Some(home));
        assert_ne!(moved.to, Some(home));
        assert_eq!(moved.to.is_some(), placement.homes().next().is_some());
        believed.get_mut(&moved.bucket.0).expect("a known bucket").0 = moved.to;
    }
}

fn check(placement: &Placement, believed: &Believed) {
    assert_eq!(placement.bucket_count(), believed.len());
    for (bucket, (home, _)) in believed {
        assert_eq!(placement.home(BucketId(*bucket)), *home, "bucket {bucket}");
    }
    for home in placement.homes() {
        let residents = || believed.values().filter(|(at, _)| *at == Some(home));
        assert_eq!(placement.count_on(home), residents().count());
        assert_eq!(
            placement.load_on(home),
            residents().map(|(_, load)| load).sum::<u64>()
        );
    }
}

proptest! {
    #[test]
    fn keeps_account(operations in prop::collection::vec(operation(), 0..200), seed: u64) {
        let mut placement = Placement::new(seed);
        let mut believed = Believed::new();
        for operation in &operations {
            let epoch = placement.epoch();
            let before: Vec<_> = (0..60).map(|bucket| placement.home(BucketId(bucket))).collect();
            apply(&mut placement, &mut believed, operation);
            check(&placement, &believed);
            let after: Vec<_> = (0..60).map(|bucket| placement.home(BucketId(bucket))).collect();
            prop_assert!(before == after || placement.epoch() > epoch, "a change has a new epoch");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_placement(
        operations in prop::collection::vec(operation(), 0..200),
        seed: u64,
    ) {
        let run = || {
            let (mut placement, mut believed) = (Placement::new(seed), Believed::new());
            operations.iter().for_each(|operation| apply(&mut placement, &mut believed, operation));
            believed
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn stays_even(devices in 2..9u32, per_device in 10..200u64, seed: u64) {
        let mut placement = Placement::new(seed);
        (0..devices).for_each(|home| drop(placement.join(home)));
        let buckets = u64::from(devices) * per_device;
        for bucket in 0..buckets {
            placement.draw(BucketId(bucket), 1, |_| true);
        }
        let fullest = (0..devices).map(|home| placement.count_on(home)).max().expect("devices") as u64;
        // Two choices keep the fullest within log log n of the mean; five is generous for nine devices.
        prop_assert!(fullest <= per_device + 5, "{} of {} on one", fullest, buckets);
        placement.join(devices);
        let mean = buckets / u64::from(devices + 1);
        let newcomer = placement.count_on(devices) as u64;
        prop_assert_eq!(newcomer, mean);
        let fullest = (0..devices).map(|home| placement.count_on(home)).max().expect("devices") as u64;
        prop_assert!(fullest <= mean + 6, "{} where the mean is {}", fullest, mean);
    }
}
