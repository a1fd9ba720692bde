//! Locks that are taken out of their order are refused, though no other thread waits for them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::fake::{Fake, Ignore};
use super::pools::SPEC;
use crate::{Pool, Reprovision, TransferMachine};

/// Whether the checker of `lnet-user` refuses a lock.
fn is_refused<R>(lock: impl FnOnce() -> R) -> bool {
    catch_unwind(AssertUnwindSafe(|| drop(lock()))).is_err_and(|panic| {
        panic.downcast_ref::<String>().is_some_and(|panic| panic.contains("is locked behind that of"))
    })
}

#[test]
fn locks_out_of_their_order_are_refused() {
    let fake = Fake::default();
    fake.plan(|plan| plan.supports_confine = true);
    let domain = fake.domain();
    let tm = TransferMachine::new(&domain, Arc::new(Ignore)).unwrap();
    let pool = Pool::new(&domain, SPEC, Arc::new(Reprovision)).unwrap();
    // The order is known once each has been locked behind the one before.
    assert_eq!(pool.lock().provision(1), 1);
    Fake::default().domain().finish().map_err(|(error, _)| error).unwrap();

    let (same_domain, same_pool) = (domain.clone(), pool.clone());
    let all_are_refused = move || {
        is_refused(|| same_pool.lock())
            && is_refused(|| Fake::default().domain())
            && is_refused(|| same_domain.tm_count())
    };
    // Requests to the transport under the lock of the domain, and under that of a transfer machine.
    fake.under(all_are_refused.clone(), || drop(domain.allocate(1, 8).unwrap()));
    fake.under(all_are_refused, || tm.confine(&[0]).unwrap());
    tm.finish().unwrap();
}
