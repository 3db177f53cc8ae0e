"""DQN on a chain of cliffs, replay buffer of transitions."""

import gc, random, time
from collections import deque, namedtuple
import torch
from torch import nn

Transition = namedtuple("Transition", "s a r s2 done")


class Cliff:
    def __init__(self, n=16, seed=0):
        self.n, self.r = n, random.Random(seed)

    def reset(self):
        self.p, self.t = 0, 0
        return self.obs()

    def obs(self):
        return [self.p / self.n, self.t / 50, float(self.p % 2), self.r.random() * 0.01]

    def step(self, a):
        self.p = max(0, self.p + (1 if a == self.p % 3 else -1))
        self.t += 1
        done = self.p >= self.n or self.t >= 50
        return self.obs(), (1.0 if self.p >= self.n else -0.01), done


class Agent:
    def __init__(self, capacity=60000, batch=256):
        torch.manual_seed(0)
        self.q = nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3))
        self.target = nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3))
        self.sync()
        self.opt = torch.optim.Adam(self.q.parameters(), 5e-4)
        self.mem = []
        self.cap, self.batch, self.rng = capacity, batch, random.Random(1)

    def sync(self):
        self.target.load_state_dict(self.q.state_dict())

    def remember(self, tr):
        if len(self.mem) < self.cap:
            self.mem.append(tr)
        else:
            self.mem[self.rng.randrange(self.cap)] = tr

    @torch.no_grad()
    def act(self, s, eps):
        if self.rng.random() < eps:
            return self.rng.randrange(3)
        return int(self.q(torch.tensor([s])).argmax())

    def learn(self):
        s, a, r, s2, d = zip(*self.rng.sample(self.mem, self.batch))
        s, s2, a, r, d = (
            torch.tensor(s),
            torch.tensor(s2),
            torch.tensor(a),
            torch.tensor(r),
            torch.tensor(d, dtype=torch.float32),
        )
        with torch.no_grad():
            y = r + 0.98 * (1 - d) * self.target(s2).max(1).values
        loss = nn.functional.smooth_l1_loss(self.q(s).gather(1, a[:, None]).squeeze(1), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss


def main(updates=700):
    env, agent = Cliff(), Agent()
    s = env.reset()
    for _ in range(60000):  # random play first
        a = agent.rng.randrange(3)
        s2, r, d = env.step(a)
        agent.remember(Transition(s, a, r, s2, d))
        s = env.reset() if d else s2
    t0 = time.time()
    for u in range(1, updates + 1):
        for _ in range(4):
            a = agent.act(s, 0.2)
            s2, r, d = env.step(a)
            agent.remember(Transition(s, a, r, s2, d))
            s = env.reset() if d else s2
        loss = agent.learn()
        gc.collect()  # keep memory low
        if u % 200 == 0:
            agent.sync()
        if u % 20 == 0:
            print(f"{u} {loss.item():.5f} {u / (time.time() - t0):.1f} updates/s", flush=True)


if __name__ == "__main__":
    main()
