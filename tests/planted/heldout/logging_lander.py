"""Policy gradient for a toy lunar lander, vectorised environments, with a very chatty run log."""

import argparse
import json
import logging
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

log = logging.getLogger("lander")


class Landers:
    """Many landers at once; action 0 falls, 1 thrusts."""

    def __init__(self, n):
        self.n = n
        self.reset()

    def reset(self):
        self.h, self.v = torch.rand(self.n) * 5 + 5, torch.zeros(self.n)
        return torch.stack([self.h, self.v], 1)

    def step(self, action):
        self.v = self.v - 0.1 + 0.25 * action
        self.h = (self.h + self.v).clamp(0, 20)
        reward = torch.where(self.h == 0, 1 - self.v.abs() * 4, -0.01)
        return torch.stack([self.h, self.v], 1), reward


class Policy(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 2)
        )

    def forward(self, obs):
        return torch.distributions.Categorical(logits=self.net(obs))


def rollout(env, policy, horizon):
    obs, logps, rewards = env.reset(), [], []
    for _ in range(horizon):
        dist = policy(obs)
        action = dist.sample()
        logps.append(dist.log_prob(action))
        obs, reward = env.step(action)
        rewards.append(reward)
    returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
    return torch.stack(logps), returns


def describe(policy):
    """Everything one could ever want to plot."""
    out = {}
    for name, p in policy.named_parameters():
        out[name] = p.detach().flatten().tolist()
        out[name + ".grad"] = p.grad.flatten().tolist()
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--updates", type=int, default=20_000)
    ap.add_argument("--envs", type=int, default=256)
    ap.add_argument("--horizon", type=int, default=4)
    ap.add_argument("--max-seconds", type=float, default=85)
    ap.add_argument("--fixed", action="store_true", help="log every 200 updates")
    args = ap.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        handler = logging.FileHandler(Path(folder) / "run.jsonl", mode="w")
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        env, policy = Landers(args.envs), Policy()
        optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
        began = time.time()
        for update in range(args.updates):
            logp, returns = rollout(env, policy, args.horizon)
            advantage = (returns - returns.mean()) / (returns.std() + 1e-6)
            loss = -(logp * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not args.fixed or update % 200 == 0:
                for name, values in describe(policy).items():
                    log.info(json.dumps({"update": update, "name": name, "values": values}))
                log.info("update %d return %.3f", update, returns[0].mean())
            if update % 250 == 0:
                print(
                    f"update {update} return {returns[0].mean():.3f} {(time.time() - began) / (update + 1) * 1e3:.1f} ms",
                    flush=True,
                )
            if time.time() - began > args.max_seconds:
                break
        handler.close()


if __name__ == "__main__":
    main()
