"""A small GAN on the CPU: two models, two optimizers, one loader; the models are the work."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    real = DataLoader(TensorDataset(torch.randn(4096, 256)), batch_size=64, shuffle=True, drop_last=True)
    generator = nn.Sequential(nn.Linear(64, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 256))
    critic = nn.Sequential(nn.Linear(256, 768), nn.LeakyReLU(), nn.Linear(768, 768), nn.LeakyReLU(), nn.Linear(768, 1))
    opt_g = torch.optim.Adam(generator.parameters(), 1e-4)
    opt_c = torch.optim.Adam(critic.parameters(), 1e-4)
    for epoch in range(60):
        for (x,) in real:
            fake = generator(torch.randn(len(x), 64))
            opt_c.zero_grad()
            (critic(fake.detach()).mean() - critic(x).mean()).backward()
            opt_c.step()
            opt_g.zero_grad()
            (-critic(fake).mean()).backward()
            opt_g.step()
        print("epoch", epoch)


if __name__ == "__main__":
    main()
