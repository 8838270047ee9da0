//! Who may have memory, and who waits for it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{Notify, oneshot};

use super::Priority;

/// Memory for objects that are fetched. A fetch gets all that it needs at once, so that none holds a part and waits for
/// the rest: many large ones can't keep each other waiting for good. Those that are waited for come first, and within a
/// class whoever came first, however much it needs. Where prefetches have what others wait for, the youngest of them are
/// asked to give it up.
#[derive(Debug)]
pub struct Admission(Mutex<State>);

#[derive(Debug)]
struct State {
    bytes_max: u64,
    used: u64,
    waiting_max: usize,
    /// Of each priority.
    waiting: [VecDeque<Waiter>; Priority::ALL.len()],
    /// Prefetches that have memory, oldest first.
    prefetches: Vec<Weak<Grant>>,
}

#[derive(Debug)]
struct Waiter {
    bytes: u64,
    to: oneshot::Sender<Permit>,
}

#[derive(Debug)]
struct Grant {
    bytes: u64,
    is_asked_back: Notify,
}

/// Why there will be no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAdmitted {
    /// It is more than there is at all.
    TooLarge {
        /// How many bytes there are.
        max: u64,
    },
    /// As many wait as may.
    TooMany {
        /// How many that is.
        max: usize,
    },
}

impl Admission {
    /// So many bytes of memory, and so many fetches that may wait for it.
    pub fn new(bytes_max: u64, waiting_max: usize) -> Arc<Admission> {
        let (waiting, prefetches) = (Default::default(), Vec::new());
        Arc::new(Admission(Mutex::new(State { bytes_max, used: 0, waiting_max, waiting, prefetches })))
    }

    /// From now on there are so many bytes. What is in use stays; who waits for more than there is waits in vain, and is told.
    pub fn limit(self: &Arc<Self>, bytes_max: u64) {
        let mut state = self.state();
        state.bytes_max = bytes_max;
        for queue in &mut state.waiting {
            queue.retain(|waiter| waiter.bytes <= bytes_max);
        }
        drop(state);
        self.grant();
    }

    /// Waits for memory. Dropping the future gives up its place.
    ///
    /// # Errors
    /// When there will be none.
    pub async fn admit(self: &Arc<Self>, bytes: u64, priority: Priority) -> Result<Permit, NotAdmitted> {
        let granted = {
            let mut state = self.state();
            if bytes > state.bytes_max {
                return Err(NotAdmitted::TooLarge { max: state.bytes_max });
            }
            if state.waiting() >= state.waiting_max {
                state.forget_canceled();
            }
            if state.waiting() >= state.waiting_max {
                return Err(NotAdmitted::TooMany { max: state.waiting_max });
            }
            let (to, granted) = oneshot::channel();
            state.waiting[priority as usize].push_back(Waiter { bytes, to });
            granted
        };
        let _leaves = Leaves(self);
        self.grant();
        // A waiter is dropped with its permit, or when it wants more than there is by now.
        granted.await.map_err(|_| NotAdmitted::TooLarge { max: self.state().bytes_max })
    }

    /// Bytes that are in use.
    pub fn used(&self) -> u64 {
        self.state().used
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        let mut state = self.state();
        state.forget_canceled();
        state.waiting()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives what there is to those who are next.
    fn grant(self: &Arc<Self>) {
        loop {
            let mut state = self.state();
            let Some((waiter, priority)) = state.next() else { return };
            state.used += waiter.bytes;
            let grant = Arc::new(Grant { bytes: waiter.bytes, is_asked_back: Notify::new() });
            if priority == Priority::Prefetch {
                state.prefetches.retain(|grant| grant.strong_count() > 0);
                state.prefetches.push(Arc::downgrade(&grant));
            }
            drop(state);
            // Who has gone meanwhile gives it back by dropping it.
            let _ = waiter.to.send(Permit { admission: self.clone(), grant });
        }
    }
}

impl State {
    /// Whoever is next, when there is memory for it. When there is not, prefetches are asked to make room.
    fn next(&mut self) -> Option<(Waiter, Priority)> {
        for queue in &mut self.waiting {
            while queue.front().is_some_and(|waiter| waiter.to.is_closed()) {
                queue.pop_front();
            }
        }
        let priority = Priority::ALL.into_iter().rev().find(|priority| !self.waiting[*priority as usize].is_empty())?;
        let queue = &mut self.waiting[priority as usize];
        let (bytes, free) = (queue.front()?.bytes, self.bytes_max.saturating_sub(self.used));
        if bytes <= free {
            return queue.pop_front().map(|waiter| (waiter, priority));
        }
        if priority > Priority::Prefetch {
            self.ask_back(bytes - free);
        }
        None
    }

    fn ask_back(&mut self, mut bytes: u64) {
        for grant in self.prefetches.iter().rev().filter_map(Weak::upgrade) {
            if bytes == 0 {
                return;
            }
            bytes = bytes.saturating_sub(grant.bytes);
            grant.is_asked_back.notify_one();
        }
    }

    fn waiting(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    fn forget_canceled(&mut self) {
        for queue in &mut self.waiting {
            queue.retain(|waiter| !waiter.to.is_closed());
        }
    }
}

/// Looks who is next when a waiter has gone: it may have kept others waiting.
struct Leaves<'a>(&'a Arc<Admission>);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.grant();
    }
}

/// The right to use memory, until it is dropped.
pub struct Permit {
    admission: Arc<Admission>,
    grant: Arc<Grant>,
}

impl Permit {
    /// How many bytes.
    pub fn bytes(&self) -> u64 {
        self.grant.bytes
    }

    /// Waits until the memory is needed for something more urgent. Only that of prefetches ever is.
    pub async fn is_asked_back(&self) {
        self.grant.is_asked_back.notified().await;
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({} bytes)", self.grant.bytes)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission.state().used -= self.grant.bytes;
        self.admission.grant();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::BoxFuture;

    use super::*;

    struct Waits(BoxFuture<'static, Result<Permit, NotAdmitted>>);

    impl fmt::Debug for Waits {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Waits")
        }
    }

    impl Waits {
        fn admitted(&mut self) -> Option<Permit> {
            (&mut self.0).now_or_never().map(|permit| permit.unwrap())
        }
    }

    /// Asks, and gives the permit when it was there at once.
    fn ask(admission: &Arc<Admission>, bytes: u64, priority: Priority) -> Result<Permit, Waits> {
        let admission = admission.clone();
        let mut waits = Waits(async move { admission.admit(bytes, priority).await }.boxed());
        waits.admitted().ok_or(waits)
    }

    #[test]
    fn those_waited_for_come_first_and_the_first_of_a_class_before_the_smaller() {
        let admission = Admission::new(100, 10);
        let all = ask(&admission, 100, Priority::Get).unwrap();
        let mut prefetch = ask(&admission, 10, Priority::Prefetch).unwrap_err();
        let mut large = ask(&admission, 80, Priority::Argument).unwrap_err();
        let mut small = ask(&admission, 30, Priority::Argument).unwrap_err();
        let mut get = ask(&admission, 90, Priority::Get).unwrap_err();
        drop(all);
        let permit = get.admitted().unwrap();
        assert!(large.admitted().is_none() && small.admitted().is_none());
        drop(permit);
        let permit = large.admitted().unwrap();
        // There would be room for the prefetch, but an argument waits.
        assert!(prefetch.admitted().is_none() && small.admitted().is_none());
        drop(permit);
        let permits = [&mut small, &mut prefetch].map(|waits| waits.admitted().unwrap());
        assert_eq!(admission.used(), 40);
        drop(permits);
        assert_eq!((admission.used(), admission.waiting()), (0, 0));
    }

    #[test]
    fn there_may_be_more_or_less_later() {
        let admission = Admission::new(100, 10);
        let most = ask(&admission, 90, Priority::Get).unwrap();
        let mut large = ask(&admission, 80, Priority::Get).unwrap_err();
        let mut small = ask(&admission, 40, Priority::Argument).unwrap_err();
        admission.limit(50);
        let refused = (&mut large.0).now_or_never().unwrap();
        assert_eq!(refused.unwrap_err(), NotAdmitted::TooLarge { max: 50 });
        assert!(small.admitted().is_none());
        drop(most);
        assert_eq!(small.admitted().unwrap().bytes(), 40);
        admission.limit(200);
        assert_eq!(ask(&admission, 200, Priority::Get).unwrap().bytes(), 200);
    }

    #[test]
    fn the_youngest_prefetches_make_room() {
        let admission = Admission::new(100, 10);
        let [old, young] = [40, 40].map(|bytes| ask(&admission, bytes, Priority::Prefetch).unwrap());
        let get = ask(&admission, 20, Priority::Get).unwrap();
        let mut waits = ask(&admission, 30, Priority::Argument).unwrap_err();
        assert!(young.is_asked_back().now_or_never().is_some());
        assert!(old.is_asked_back().now_or_never().is_none() && get.is_asked_back().now_or_never().is_none());
        drop(young);
        assert_eq!(waits.admitted().unwrap().bytes(), 30);
    }

    #[test]
    fn who_goes_leaves_nothing_behind() {
        let admission = Admission::new(100, 2);
        let most = ask(&admission, 90, Priority::Get).unwrap();
        let large = ask(&admission, 50, Priority::Get).unwrap_err();
        let mut small = ask(&admission, 10, Priority::Get).unwrap_err();
        assert_eq!(admission.waiting(), 2);
        let too_many = admission.admit(1, Priority::Get).now_or_never().unwrap();
        assert_eq!(too_many.unwrap_err(), NotAdmitted::TooMany { max: 2 });
        // It kept the small one waiting.
        drop(large);
        let permit = small.admitted().unwrap();
        // Granted, but nobody took it.
        let waits = ask(&admission, 90, Priority::Get).unwrap_err();
        drop(most);
        drop(waits);
        assert_eq!(admission.used(), 10);
        drop(permit);
        assert_eq!(admission.used(), 0);
        let too_large = admission.admit(101, Priority::Get).now_or_never().unwrap();
        assert_eq!(too_large.unwrap_err(), NotAdmitted::TooLarge { max: 100 });
    }
}
