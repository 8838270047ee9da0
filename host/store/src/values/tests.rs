//! Eviction to disk, and notifications of workers.

use std::os::fd::AsFd as _;

use super::lending::FILES_PER_WORKER_MAX;
use super::*;
use crate::disk::DiskTask;
use crate::{SealedFile, SpillFolder, UnsealedFile, UnsealedValue};

const MIB: u64 = 1 << 20;

/// A value store with a disk that completes each task at once.
struct World {
    values: ValueStore,
    folder: SpillFolder,
    _kept: tempfile::TempDir,
    /// Actions other than disk tasks, as text.
    notified: Vec<String>,
    /// Values that could not be read.
    lost: Vec<ValueKey>,
}

impl World {
    fn new(memory: u64, reserve: u64) -> World {
        let kept = tempfile::tempdir().unwrap();
        let folder = SpillFolder::new(kept.path().to_owned(), Some(reserve));
        let limits = StoreLimits { memory_bytes_max: memory, files_max: 100 };
        World { values: ValueStore::new(limits), folder, _kept: kept, notified: Vec::new(), lost: Vec::new() }
    }

    fn settle(&mut self) -> &mut World {
        loop {
            let actions = self.values.take_actions();
            if actions.is_empty() {
                return self;
            }
            for action in actions {
                match action {
                    StoreAction::Forget(worker, key) => self.notified.push(format!("forget w{worker} v{}", key.0)),
                    StoreAction::Writer(worker, number, state) => {
                        let state = format!("{state:?}");
                        let word = state.split('(').next().unwrap_or_default();
                        self.notified.push(format!("{word} w{worker} m{number}"));
                    }
                    StoreAction::Disk(DiskTask::Write(all)) => {
                        let (keys, sources): (Vec<_>, Vec<_>) = all.into_iter().unzip();
                        let written = self.folder.write(&sources);
                        assert!(self.values.handle_disk_completion(DiskCompletion::Written(keys, written)).is_none());
                    }
                    StoreAction::Disk(DiskTask::Read(key, spilled)) => {
                        if let Some((key, Err(_))) =
                            self.values.handle_disk_completion(DiskCompletion::Read(key, spilled.read()))
                        {
                            self.lost.push(key);
                        }
                    }
                    StoreAction::Disk(DiskTask::Free(_)) => {}
                }
            }
        }
    }

    fn expects(&mut self, expected: &str) -> &mut World {
        self.settle();
        assert_eq!(std::mem::take(&mut self.notified).join(", "), expected);
        self
    }

    fn add(&mut self, memory: ValueMemory) -> ValueKey {
        let key = self.values.add(JobId(1), ObjectId(1), memory).unwrap();
        self.settle();
        key
    }

    fn object(&mut self, mib: u64) -> ValueKey {
        self.add(ValueMemory::Sealed(SealedFile::new(&vec![mib as u8; (mib * MIB) as usize]).unwrap()))
    }

    fn unsealed(&mut self, mib: u64, writer: u32, number: u32) -> ValueKey {
        let unsealed = UnsealedFile::new((mib * MIB) as usize).unwrap();
        let file = unsealed.as_fd().try_clone_to_owned().unwrap();
        self.add(ValueMemory::Unsealed(UnsealedValue::adopt(file, mib * MIB).unwrap(), (WorkerId(writer), number)))
    }

    fn lend(&mut self, key: ValueKey, worker: u32) -> &'static str {
        let lending = self.values.lend(key, WorkerId(worker));
        self.settle();
        match lending {
            LendResult::Bytes(_) => "bytes",
            LendResult::File(_) => "file",
            LendResult::AlreadyLent => "same",
            LendResult::Pending => "later",
            LendResult::Lost(_) => "lost",
        }
    }

    /// Returns a letter per value: in memory, on disk, both or none.
    fn places(&self, keys: &[ValueKey]) -> String {
        let place = |key: &ValueKey| match self.values.view(*key).map(|view| (view.in_memory, view.on_disk)) {
            Some((true, false)) => 'm',
            Some((false, true)) => 'd',
            Some((true, true)) => 'b',
            _ => '-',
        };
        keys.iter().map(place).collect()
    }

    fn used(&self) -> u64 {
        self.values.usage().memory_bytes / MIB
    }
}

#[test]
fn the_biggest_and_coldest_go_first() {
    let mut world = World::new(100 * MIB, 0);
    let all = [world.object(10), world.object(40), world.object(10), world.object(15)];
    assert_eq!((world.places(&all), world.used()), ("mmmm".into(), 75));
    let last = world.object(10);
    assert_eq!((world.places(&all), world.places(&[last]), world.used()), ("mdmm".into(), "m".into(), 45));
    // A restored value stays on disk, and is evicted again without a write.
    assert_eq!((world.lend(all[1], 1), world.places(&all)), ("later", "dbmd".into()));
    assert_eq!((world.lend(all[1], 1), world.lend(all[1], 1), world.lend(all[1], 2)), ("file", "same", "file"));
}

#[test]
fn evicted_files_count_until_workers_return_them() {
    let mut world = World::new(100 * MIB, 0);
    let first = world.object(60);
    assert_eq!((world.lend(first, 1), world.lend(first, 2)), ("file", "file"));
    let second = world.object(30);
    world.expects("forget w1 v0, forget w2 v0");
    assert_eq!((world.places(&[first, second]), world.used()), ("mm".into(), 90));
    // A file that a worker still uses can't be evicted; others are.
    world.values.return_file(first, WorkerId(1));
    world.expects("");
    assert_eq!((world.places(&[first, second]), world.used()), ("md".into(), 60));
    world.values.remove_worker(WorkerId(2));
    let third = world.object(30);
    assert_eq!((world.places(&[first, second, third]), world.used()), ("ddm".into(), 30));
    // A dropped value counts until its worker returns the file.
    assert_eq!((world.lend(third, 1), world.used()), ("file", 30));
    world.values.drop_value(third);
    world.expects("forget w1 v2");
    assert_eq!(world.used(), 30);
    world.values.return_file(third, WorkerId(1));
    assert_eq!((world.places(&[third]), world.used()), ("-".into(), 0));
}

#[test]
fn other_values_are_evicted_instead_of_files_that_are_not_returned() {
    let mut world = World::new(100 * MIB, 0);
    let lent = world.object(60);
    assert_eq!(world.lend(lent, 1), "file");
    let other = world.object(30);
    world.expects("forget w1 v0");
    assert_eq!((world.places(&[lent, other]), world.used()), ("mm".into(), 90));
    world.values.make_room();
    world.expects("");
    assert_eq!((world.places(&[lent, other]), world.used()), ("md".into(), 60));
}

#[test]
fn memory_of_dropped_values_is_reused_by_its_writer() {
    let mut world = World::new(100 * MIB, 0);
    let first = world.unsealed(20, 1, 7);
    world.values.drop_value(first);
    world.expects("Reuse w1 m7");
    assert_eq!(world.used(), 20);
    let again = world.unsealed(20, 1, 7);
    assert_eq!(world.used(), 20);
    assert_eq!(world.lend(again, 1), "file");
    world.expects("Close w1 m7");
    world.values.drop_value(again);
    world.expects("forget w1 v1");
    // Memory kept for reuse is released before values go to disk.
    let waits = world.unsealed(20, 2, 8);
    world.values.drop_value(waits);
    world.expects("Reuse w2 m8");
    let large = world.object(50);
    world.expects("Trim w2 m8");
    assert_eq!((world.places(&[large]), world.used()), ("m".into(), 70));
}

#[test]
fn unsealed_values_are_spilled_with_their_writers_memory() {
    let mut world = World::new(100 * MIB, 0);
    let (cold, hot) = (world.unsealed(60, 2, 9), world.object(30));
    world.expects("Close w2 m9");
    assert_eq!((world.places(&[cold, hot]), world.used()), ("dm".into(), 30));
    assert_eq!((world.lend(cold, 1), world.lend(cold, 1)), ("later", "file"));
}

#[test]
fn a_full_disk_is_reported_and_retried() {
    let mut world = World::new(100 * MIB, u64::MAX / 2);
    let (first, second) = (world.object(60), world.object(50));
    assert!(world.values.exceeds_limit(second) && world.values.exceeds_limit(first));
    assert_eq!(world.values.full().map(|fault| fault.code), Some(Code::StoreFull));
    world.values.retry_spill();
    world.settle();
    assert!(world.values.full().is_some());
    world.values.drop_value(second);
    world.settle();
    assert!(!world.values.exceeds_limit(first));
    assert_eq!((world.places(&[first, second]), world.used()), ("m-".into(), 60));
}

#[test]
fn oversized_values_are_rejected() {
    let mut world = World::new(MIB, 0);
    let mut refused = |bytes: u64| {
        let memory = ValueMemory::Bytes(vec![0; bytes as usize].into());
        world.values.add(JobId(1), ObjectId(1), memory).map_err(|fault| fault.code).err()
    };
    assert_eq!(refused(MIB + 1), Some(Code::StoreFull));
    assert_eq!(refused(1000), None);
}

#[test]
fn files_are_few_enough() {
    let mut world = World::new(1000 * MIB, 0);
    let all: Vec<ValueKey> =
        (0..300).map(|_| world.add(ValueMemory::Sealed(SealedFile::new(&[1; 10]).unwrap()))).collect();
    let in_memory = world.places(&all).matches('m').count();
    assert!((50..=80).contains(&in_memory), "{in_memory}");
    assert_eq!(world.values.memory.files(), in_memory);
    all.iter().for_each(|key| assert_eq!(world.values.bytes(*key, 100).unwrap(), [1; 10]));
    all.iter().for_each(|key| world.values.drop_value(*key));
    world.settle();
    let StoreUse { memory_bytes, disk_bytes, values, .. } = world.values.usage();
    assert_eq!((memory_bytes, disk_bytes, values, world.values.memory.files()), (0, 0, 0, 0));
}

#[test]
fn a_worker_has_only_so_many_files() {
    let mut world = World::new(1000 * MIB, 0);
    world.values.limits.files_max = 10_000;
    let lent = |world: &mut World| {
        let key = world.add(ValueMemory::Sealed(SealedFile::new(&[1; 10]).unwrap()));
        world.lend(key, 1)
    };
    (0..FILES_PER_WORKER_MAX).for_each(|_| assert_eq!(lent(&mut world), "file"));
    world.expects("");
    lent(&mut world);
    world.expects("forget w1 v0");
}

#[test]
fn unreadable_values_are_lost() {
    let mut world = World::new(100 * MIB, 0);
    let (first, _) = (world.object(60), world.object(30));
    assert_eq!(world.places(&[first]), "d");
    let unreadable = || Err(io::Error::other("no"));
    assert!(matches!(world.values.lend(first, WorkerId(1)), LendResult::Pending));
    world.values.take_actions();
    let (key, result) = world.values.handle_disk_completion(DiskCompletion::Read(first, unreadable())).unwrap();
    assert_eq!((key, result.unwrap_err().to_string()), (first, "no".to_owned()));
    assert_eq!(world.used(), 30);
}

/// A new value is over the limit while too many files are open, even if memory is free.
#[test]
fn files_that_are_too_many_wait_for_room() {
    let mut world = World::new(1 << 40, 0);
    let bytes = vec![1; 8 << 10];
    let file = || ValueMemory::Sealed(SealedFile::new(&bytes).unwrap());
    let keys: Vec<ValueKey> =
        (0..101).map(|number| world.values.add(JobId(1), ObjectId(number), file()).unwrap()).collect();
    assert!(world.values.exceeds_limit(keys[100]));
    let own = world.values.add(JobId(1), ObjectId(200), ValueMemory::Bytes(bytes.as_slice().into())).unwrap();
    assert!(!world.values.exceeds_limit(own), "it lies in no file");
    // The disk takes some of the files.
    world.settle();
    assert!(keys.iter().all(|key| !world.values.exceeds_limit(*key)));
}
