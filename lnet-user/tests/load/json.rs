//! Plans and reports on their way through a control protocol.

use std::time::Duration;

use lnet_user::Nid;
use lnet_user::load::{
    Difference, Fault, FaultKind, Faults, Initiator, InitiatorReport, Kind, Latency, Plan, Scheme, Target,
    TargetReport,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{plan, scheme, start};

fn travelled<T: Serialize + DeserializeOwned>(value: &T) -> T {
    serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap()
}

#[test]
fn plans_travel_and_rubbish_is_refused() {
    let targets = vec!["10.0.0.1@xdp".parse().unwrap(), Nid::LO];
    let plan = Plan::new(Scheme { seed: u64::MAX, ..Scheme::default() }, targets);
    let json = serde_json::to_string(&plan).unwrap();
    assert!(json.contains("\"targets\":[\"10.0.0.1@xdp\",\"0@lo\"]"), "{json}");
    assert_eq!(travelled(&plan), plan);
    assert_eq!(serde_json::from_str::<Scheme>("{\"seed\":3}").unwrap(), scheme(3));
    for wrong in ["{\"sead\":3}", "{\"seed\":-3}", "{\"sizes\":7}"] {
        assert!(serde_json::from_str::<Scheme>(wrong).is_err(), "{wrong}");
    }
    assert!(serde_json::from_str::<Plan>(&json.replace("0@lo", "nobody")).is_err());
}

#[test]
fn latencies_travel_and_rubbish_is_refused() {
    let mut latency = Latency::default();
    (1..=1000).for_each(|us| latency.record(Duration::from_micros(us)));
    let mut again = travelled(&latency);
    assert_eq!(again.count(), 1000);
    for share in [0.0, 0.5, 0.9, 0.99, 1.0] {
        assert_eq!(again.quantile_ns(share), latency.quantile_ns(share));
    }
    again.merge(&latency);
    assert_eq!((again.count(), again.quantile_ns(0.5)), (2000, latency.quantile_ns(0.5)));
    for text in ["[[1,18446744073709551615],[2,2]]", "[[1]]", "[[-1,1]]", "{}"] {
        assert!(serde_json::from_str::<Latency>(text).is_err(), "{text}");
    }
}

#[test]
fn reports_travel() {
    let lnet = start();
    let scheme = scheme(5);
    let target = Target::start(&lnet, &scheme).unwrap();
    let mut done = Initiator::start(&lnet, &plan(&scheme, 100)).unwrap().wait();
    done.faults = faults();
    let again: InitiatorReport = travelled(&done);
    assert_eq!((again.puts(), again.gets(), &again.faults), (done.puts(), done.gets(), &done.faults));
    let seen = target.stop();
    assert_eq!(travelled::<TargetReport>(&seen), seen);
    let json = serde_json::to_string(&done).unwrap();
    assert!(json.contains("\"peer\":\"0@lo\"") && json.contains("{\"byte\":1}"), "{json}");
}

fn faults() -> Faults {
    let fault = Fault {
        fault: FaultKind::Byte,
        kind: Kind::Get,
        number: u64::MAX,
        peer: Nid::LO,
        portal: 9,
        match_bits: 1 << 41,
        length_bytes: 5,
        difference: Some(Difference { offset_bytes: 3, expected: 1, found: 2 }),
    };
    Faults { count: 1, by_kind: [(FaultKind::Byte, 1)].into(), first: vec![fault] }
}
