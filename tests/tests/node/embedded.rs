//! Programs that embed a node: it answers pings, pings, sees its peers, and is taken in charge as it is.

use std::time::Duration;

use lnet_admin::{Control, ControlOptions};
use lnet_control::server::Handler;
use lnet_core::lnd::NiId;
use lnet_model::ni::NiName;
use lnet_model::records::PeerQuery;
use lnet_model::request::{Change, ChangeSet};
use lnet_tests::netns::enter;
use lnet_tests::node::nid_v4;
use lnet_user::node::XdpMode;

use super::ports::{Rails, ni};
use super::privileged;

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn embedded_nodes_ping_each_other_and_are_taken_in_charge_with_their_nis() {
    if !privileged() {
        return;
    }
    let (netns, [near, far]) = Rails::start_nodes([XdpMode::Socket; 2]);
    near.open().unwrap();
    far.open().unwrap();
    let nids = |side: &lnet_tests::netns::Namespace| {
        [0, 1].map(|rail| nid_v4(&side.interfaces()[usize::from(rail)], rail))
    };
    let (own, others) = (nids(netns.a()), nids(netns.b()));
    assert_eq!(near.ping(others[0], None, PATIENCE).unwrap().nids, others);
    assert_eq!(near.ping(others[1], Some(own[1]), PATIENCE).unwrap().nids, others);
    let primaries = |lnet: &lnet_user::Lnet| {
        lnet.peers().unwrap().into_iter().map(|peer| peer.primary).collect::<Vec<_>>()
    };
    assert_eq!((primaries(&near), primaries(&far)), (others.to_vec(), own.to_vec()));

    // What others hear follows the NIs.
    enter(netns.b(), || far.remove_ni(NiId(2), Duration::ZERO)).unwrap();
    assert_eq!(near.ping(others[0], None, PATIENCE).unwrap().nids, others[..1]);

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let control = Control::new(&near, ControlOptions::default()).unwrap();
        let shown = control.nets().await.unwrap();
        let shown: Vec<_> = shown.iter().flat_map(|net| &net.nis).map(|ni| ni.nid).collect();
        assert_eq!(shown[1..], own, "after lo");
        assert_eq!(control.peer_page(PeerQuery::default()).await.unwrap().peers.len(), 2);
        let changes = vec![Change::DeleteNi(NiName::Nid(own[1]))];
        control.apply(ChangeSet { changes, dry_run: false, generation: None }).await.unwrap();
        let changes = vec![Change::DeleteNi(NiName::Nid(own[1]))];
        let refused =
            control.apply(ChangeSet { changes, dry_run: false, generation: None }).await.unwrap_err();
        assert!(refused.message.contains("is not a local nid"), "{}", refused.message);
    });
    assert_eq!(near.nis().len(), 1);
    assert_eq!(near.ping(others[0], None, PATIENCE).unwrap().nids, others[..1]);
    let config = ni(&netns.a().interfaces()[1], 1, XdpMode::Socket);
    assert_eq!(enter(netns.a(), || near.add_ni(&config)).unwrap(), NiId(2));
}
