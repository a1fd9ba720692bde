//! Plans on their way through a control protocol.

use lnet_load::{LoadPlan, Scheme};
use lnet_user::Nid;

use crate::scheme;

#[test]
fn plans_travel_and_rubbish_is_refused() {
    let targets = vec!["10.0.0.1@xdp".parse().unwrap(), Nid::LO];
    let plan = LoadPlan::new(Scheme { seed: u64::MAX, ..Scheme::default() }, targets);
    let json = serde_json::to_string(&plan).unwrap();
    assert!(json.contains("\"targets\":[\"10.0.0.1@xdp\",\"0@lo\"]"), "{json}");
    assert_eq!(serde_json::from_str::<LoadPlan>(&json).unwrap(), plan);
    assert_eq!(serde_json::from_str::<Scheme>("{\"seed\":3}").unwrap(), scheme(3));
    for wrong in ["{\"sead\":3}", "{\"seed\":-3}", "{\"sizes\":7}"] {
        assert!(serde_json::from_str::<Scheme>(wrong).is_err(), "{wrong}");
    }
    assert!(serde_json::from_str::<LoadPlan>(&json.replace("0@lo", "nobody")).is_err());
}
