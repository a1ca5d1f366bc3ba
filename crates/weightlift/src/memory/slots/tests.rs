use super::*;

#[derive(Debug)]
struct Ends(bool);

impl Completion for Ends {
    fn wait(&self) -> Result<()> {
        #[cfg(loom)]
        loom::thread::yield_now();
        if self.0 { Ok(()) } else { Err(Error::new(ErrorKind::Cuda, "lost")) }
    }
}

/// Every interleaving of loads that share a ring: a block is one load's at a time, nobody
/// waits for ever, and whoever reuses a block has waited for its copy.
#[cfg(loom)]
mod loom_models {
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::thread;

    use super::*;

    /// A copy that ends when somebody waits for it, and that knows whether it has.
    #[derive(Debug)]
    struct Copy(std::sync::Arc<[Owner; 2]>, usize);

    /// Who may touch a block: 0 nobody, 1 a filler, 2 a copy.
    #[derive(Debug)]
    struct Owner(AtomicUsize);

    impl Completion for Copy {
        fn wait(&self) -> Result<()> {
            // The device is done: from now on the memory may be written again.
            let _ = self.0[self.1].0.compare_exchange(2, 0, Ordering::AcqRel, Ordering::Acquire);
            Ok(())
        }
    }

    fn load(slots: &Slots, owners: &std::sync::Arc<[Owner; 2]>, abandon: bool) {
        let slot = slots.acquire(&|| false).unwrap();
        let before = owners[slot].0.swap(1, Ordering::AcqRel);
        assert_eq!(before, 0, "a block was given out while it was somebody's");
        if abandon {
            owners[slot].0.store(0, Ordering::Release);
            slots.abandon(slot);
            return;
        }
        let before = owners[slot].0.swap(2, Ordering::AcqRel);
        assert_eq!(before, 1, "a block was taken from its filler");
        let submission = slots.submit(slot, Arc::new(Copy(owners.clone(), slot)));
        slots.land(submission).unwrap();
    }

    fn model(slots: usize, loads: &'static [bool]) {
        loom::model(move || {
            let slots = loom::sync::Arc::new(Slots::new(slots));
            let owners =
                std::sync::Arc::new([Owner(AtomicUsize::new(0)), Owner(AtomicUsize::new(0))]);
            let threads: Vec<_> = loads
                .iter()
                .map(|abandon| {
                    let (slots, owners) = (slots.clone(), owners.clone());
                    thread::spawn(move || load(&slots, &owners, *abandon))
                })
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(slots.settle());
        });
    }

    #[test]
    fn loom_two_loads_share_one_block() {
        model(1, &[false, false]);
    }

    #[test]
    fn loom_a_load_that_gives_up_lets_the_next_one_on() {
        model(1, &[true, false]);
    }

    #[test]
    fn loom_a_lost_copy_quarantines_its_block_for_everybody() {
        loom::model(|| {
            let slots = loom::sync::Arc::new(Slots::new(1));
            let other = slots.clone();
            let slot = slots.acquire(&|| false).unwrap();
            let submission = slots.submit(slot, Arc::new(Ends(false)));
            let waiter = thread::spawn(move || other.acquire(&|| false).map(|_| ()));
            let landed = slots.land(submission);
            assert!(landed.is_err());
            assert!(waiter.join().unwrap().is_err());
            assert_eq!(slots.quarantined(), 1);
            assert!(!slots.settle());
        });
    }
}

#[cfg(not(loom))]
mod states {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn the_oldest_copy_makes_room_for_the_next_block() {
        let slots = Slots::new(2);
        let go = || false;
        let (first, second) = (slots.acquire(&go).unwrap(), slots.acquire(&go).unwrap());
        let late = slots.submit(second, Arc::new(Ends(true)));
        slots.submit(first, Arc::new(Ends(true)));
        assert_eq!(slots.acquire(&go).unwrap(), second, "submitted first, so free first");
        slots.land(late).expect("whoever took the block has waited for its copy");
        slots.abandon(second);
        assert!(slots.settle());
    }

    #[test]
    fn a_waiter_stops_when_its_load_is_stopped() {
        let slots = Slots::new(1);
        let _taken = slots.acquire(&|| false).unwrap();
        let error = slots.acquire(&|| true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        slots.abandon(0);
        assert_eq!(slots.acquire(&|| false).unwrap(), 0, "a stopped waiter leaves the queue");
    }

    #[test]
    fn who_does_not_wait_takes_only_what_is_free_and_nobodys_turn() {
        let slots = Arc::new(Slots::new(1));
        assert_eq!(slots.try_acquire().unwrap(), Some(0));
        assert_eq!(slots.try_acquire().unwrap(), None, "it is being filled");
        slots.submit(0, Arc::new(Ends(true)));
        assert_eq!(slots.try_acquire().unwrap(), None, "its copy is not waited for");
        assert_eq!(slots.acquire(&|| false).unwrap(), 0);

        // Somebody waits: the block is his although it is free.
        let waiting = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                slots.acquire(&|| {
                    waiting.store(true, Ordering::Relaxed);
                    false
                })
            });
            while !waiting.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            slots.abandon(0);
            assert_eq!(slots.try_acquire().unwrap(), None);
            assert_eq!(waiter.join().unwrap().unwrap(), 0);
        });
        slots.quarantine(0, &Error::new(ErrorKind::Cuda, "lost"));
        assert_eq!(slots.try_acquire().unwrap_err().message(), "lost");
    }

    #[test]
    fn a_lost_copy_takes_its_block_out_of_use() {
        let slots = Slots::new(1);
        let submission = slots.submit(slots.acquire(&|| false).unwrap(), Arc::new(Ends(false)));
        assert!(slots.land(submission).is_err());
        assert!(slots.land(submission).is_err(), "it stays lost");
        assert_eq!(slots.acquire(&|| false).unwrap_err().message(), "lost", "and says why");
        assert_eq!(slots.quarantined(), 1);
    }

    /// While somebody waits for it, its block is taken, filled and submitted again.
    struct Overtaken {
        slots: Arc<Slots>,
        overtaken: AtomicBool,
        next: Arc<Counted>,
    }

    impl std::fmt::Debug for Overtaken {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Overtaken")
        }
    }

    impl Completion for Overtaken {
        fn wait(&self) -> Result<()> {
            if !self.overtaken.swap(true, Ordering::Relaxed) {
                let slot = self.slots.acquire(&|| false)?;
                self.slots.submit(slot, self.next.clone());
            }
            Ok(())
        }
    }

    /// Counts how often it was waited for.
    #[derive(Debug, Default)]
    struct Counted(AtomicUsize);

    impl Completion for Counted {
        fn wait(&self) -> Result<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    /// Two wait for one copy, and the first of them to return gives the block on. The second
    /// must not take the end of its copy for that of the block's next one.
    #[test]
    fn whoever_lands_late_leaves_the_blocks_next_copy_alone() {
        let slots = Arc::new(Slots::new(1));
        let next = Arc::new(Counted::default());
        let (overtaken, copied) = (AtomicBool::new(false), next.clone());
        let first = Overtaken { slots: slots.clone(), overtaken, next: copied };
        let late = slots.submit(slots.acquire(&|| false).unwrap(), Arc::new(first));
        slots.land(late).unwrap();
        assert_eq!(next.0.load(Ordering::Relaxed), 0, "nobody has asked for the next copy");
        slots.acquire(&|| false).unwrap();
        assert_eq!(next.0.load(Ordering::Relaxed), 1, "a block was given out under its copy");
    }

    #[test]
    fn the_peak_counts_blocks_that_were_out_at_one_time() {
        let slots = Slots::new(3);
        let taken: Vec<_> = (0..2).map(|_| slots.acquire(&|| false).unwrap()).collect();
        taken.into_iter().for_each(|slot| slots.abandon(slot));
        assert_eq!(slots.take_most_busy(), 2);
        assert_eq!(slots.take_most_busy(), 0);
    }
}
