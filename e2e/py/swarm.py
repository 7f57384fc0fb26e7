"""One member of a BitTorrent swarm by libtorrent, with the settings that suit a data centre.

It says "ready" when it has the torrent, begins when the file GO is there, makes the file DONE when it has
everything, and gives to others until it is ended.
"""

import argparse
import os
import time

import libtorrent as lt


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("torrent")
    p.add_argument("dir")
    p.add_argument("go")
    p.add_argument("done")
    p.add_argument("--address", required=True)
    p.add_argument("--seed", action="store_true", help="the directory has everything")
    a = p.parse_args()
    session = lt.session({
        "listen_interfaces": a.address + ":6881",
        "enable_dht": False, "enable_lsd": False, "enable_upnp": False, "enable_natpmp": False,
        "enable_outgoing_utp": False, "enable_incoming_utp": False,  # TCP, as everything else here
        "allow_multiple_connections_per_ip": True,
        "connections_limit": 400, "connection_speed": 200, "torrent_connect_boost": 100,
        "unchoke_slots_limit": 32, "unchoke_interval": 2, "rate_limit_ip_overhead": False,
        "max_out_request_queue": 64, "request_queue_time": 2, "max_allowed_in_request_queue": 500,
        "initial_picker_threshold": 1, "strict_end_game_mode": True,
        "send_buffer_watermark": 1 << 20, "min_reconnect_time": 1,
        "alert_mask": 0,
    })
    params = lt.add_torrent_params()
    params.ti = lt.torrent_info(a.torrent)
    params.save_path = a.dir
    params.flags &= ~(lt.torrent_flags.auto_managed | lt.torrent_flags.paused)
    if a.seed:
        params.flags |= lt.torrent_flags.seed_mode
    print("ready", flush=True)
    while not os.path.exists(a.go):
        time.sleep(0.01)
    handle = session.add_torrent(params)
    while not handle.status().is_seeding:
        time.sleep(0.02)
    open(a.done, "w").close()
    while True:
        time.sleep(60)


main()
