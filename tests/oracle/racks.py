"""Gangs in as few racks as they need, in the oracle (section 7 of `docs/semantics.md`, "Racks")."""

from tests.oracle.state import State


def _servers(state: State, p: int, r: int, cap_s: list[int]) -> list[int]:
    """The servers of a rack, those with the largest `cap_s` first."""
    return sorted((s for s in range(state.hw.N) if state.hw.rack[p, s] == r), key=lambda s: (-cap_s[s], s))


def _rooms(state: State, p: int, cap_s: list[int], blocks: bool) -> list[int]:
    """`room_r` of all racks."""
    rooms = []
    for r, block in enumerate(state.hw.block[p]):
        servers = _servers(state, p, r, cap_s)
        rooms.append(sum(cap_s[s] for s in (servers[:block] if blocks and block > 0 else servers)))
    return rooms


def _by_server(state: State, cap: list[int]) -> list[int]:
    return [sum(cap[a] for a in state.hw.groups_of(s)) for s in range(state.hw.N)]


def in_fewest(state: State, p: int, j: int) -> bool:
    """Whether a gang fits as few racks now as in the empty partition."""
    need = state.jobs[j].W
    blocks = sum(_rooms(state, p, state.empty_capacity(p, j), True)) >= need
    empty = sorted(_rooms(state, p, state.empty_capacity(p, j), blocks), reverse=True)
    now = sorted(_rooms(state, p, _by_server(state, state.capacity(p, j)), blocks), reverse=True)
    m = next(m for m in range(1, len(empty) + 1) if sum(empty[:m]) >= need)
    return sum(now[:m]) >= need


def seen_servers(state: State, p: int, j: int, free: list[int], cap: list[int]) -> set[int]:
    """The servers whose free GPUs a gang sees, of what it sees at its tier."""
    hw, cap_s, rest, seen = state.hw, _by_server(state, cap), state.jobs[j].W, set[int]()
    blocks = sum(_rooms(state, p, cap_s, True)) >= rest
    rooms = dict(enumerate(_rooms(state, p, cap_s, blocks)))
    gpus = hw.gpus_for(p, state.jobs[j])

    def key(r: int) -> tuple:
        groups = [a for s in range(hw.N) if hw.rack[p, s] == r for a in hw.groups_of(s)]
        left = sum(free[a] for a in groups)
        return left == sum(int(gpus[a]) for a in groups), left, r

    while rest > 0 and any(rooms.values()):
        holding = [r for r, room in rooms.items() if room >= rest]
        r = min(holding or [r for r, room in rooms.items() if room == max(rooms.values())], key=key)
        takes = min(rooms.pop(r), rest)
        servers = _servers(state, p, r, cap_s)
        if holding and cap_s[servers[0]] >= rest:
            seen |= set(servers)
        else:
            held = 0
            for s in servers:
                if held < takes:
                    seen.add(s)
                held += cap_s[s]
        rest -= takes
    return seen
